"""A site in a secure sum: what it is ready for, whose sum it adds to, and that it does so once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.errors import (
    ConfigError,
    FedprivError,
    LimitError,
    PausedError,
    ProtocolError,
    SetError,
    ShareLostError,
    SlotError,
    StepFailedError,
)
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.pki.signing import load_or_create_key
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.rules import SumRule
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, SystemCsprng
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.private_training.released import MaskedShare
from fedpriv.protocol import Proposal, Ready, SetRequest, SharedNoise, StepReply
from fedpriv.secure_sum.roster import Roster, RosterEntry
from fedpriv.secure_sum.total import Total
from fedpriv_client import shared_slots as module
from fedpriv_client import ticks
from fedpriv_client.orders import Asked, Orders
from fedpriv_client.report import write_budget_report
from fedpriv_client.site import Site
from fedpriv_client.site_settings import SIGNING_KEY, SiteSettings
from tests.client.client_setting import TERMS, Setting, request
from tests.secure_sum.secure_sites import signed

Make = Callable[..., Any]
NAMES = ("clinic", "hospital", "practice")
BOTH = dataclasses.replace(TERMS, budget_alone=40.0)


class Sharing(Setting):
    """Three sites with the same tiny model and records, and a job that adds them up."""

    def __init__(self, folder: Path, model: Path) -> None:
        super().__init__(folder, model)
        keys = {name: load_or_create_key(self.state(name) / SIGNING_KEY) for name in NAMES}
        self.roster = Roster.of(
            RosterEntry(name=name, public_key=key.public_key().public_bytes_raw().hex())
            for name, key in keys.items()
        )
        self.shared = SharedNoise(
            max_colluding=1,
            sites=3,
            roster=self.roster.digest,
            noise_multiplier=calibrate_noise(5.0, 1e-3, 0.5, 4),
        )
        self.sharing = self.change(shared=self.shared)

    def state(self, name: str) -> Path:
        state = self.folder / name
        state.mkdir(mode=0o700, exist_ok=True)
        return state

    def settings(self, name: str, **changes: Any) -> SiteSettings:
        limits = self.limits(**{"roster": self.roster, **changes})
        return SiteSettings(
            name=name,
            data=self.data,
            columns={"text": "note"},
            state_dir=self.state(name),
            ledger=self.state(name) / "ledger.db",
            terms=BOTH,
            limits=limits,
            compute=self.compute,
        )

    def open(self, name: str, seed: int | None = None, **changes: Any) -> Site:
        settings = self.settings(name, **changes)
        if seed is not None:
            terms = dataclasses.replace(settings.terms, private=False)
            settings = dataclasses.replace(settings, terms=terms)
            return Site(settings, self.pool, lambda job, slot: InsecureRandomness(seed, name, slot))
        return Site(settings, self.pool, self.site_csprng)

    @staticmethod
    def site_csprng(job: str, slot: int) -> SystemCsprng:
        return SystemCsprng()

    def ready(self, site: Site, slot: int = 0) -> Ready:
        found = site.step(request(slot), self.vector)
        assert isinstance(found, Ready)
        return found


def set_of(*ready: Ready, slot: int = 0, **changes: Any) -> SetRequest:
    members = tuple(sorted((one.member for one in ready), key=lambda member: member.name))
    known = {"job_id": "job-1", "slot": slot, "bits": 16, "members": members}
    return SetRequest(**{**known, **changes})


@pytest.fixture
def sharing(tmp_path: Path, model_folder: Make) -> Sharing:
    return Sharing(tmp_path, model_folder("llama"))


@pytest.fixture
def sites(sharing: Sharing) -> Any:
    opened = [sharing.open(name) for name in NAMES]
    for site in opened:
        site.consider(sharing.sharing)
    yield opened
    for site in opened:
        site.close()


def shares(sites: Sequence[Site], asked: SetRequest) -> list[MaskedShare]:
    return [site.share(asked)[1] for site in sites]


def test_the_sum_of_all_shares_is_the_sum_of_the_sites_with_the_noise_of_the_plan(
    sharing: Sharing, sites: list[Site]
) -> None:
    asked = set_of(*(sharing.ready(site) for site in sites))
    size = sharing.vector.size
    total = Total(size, 16)
    for share in shares(sites, asked):
        assert share.values.dtype == np.uint16
        total.add([(slice(0, size), share.values)])
    noise, clip = sharing.shared.noise_multiplier, sharing.sharing.privacy.clip_norm
    grid = SharedGrid(noise, clip, "default", 2, size)
    values = signed(total) * grid.step
    # At most 36 clipped units, and three shares of which two are the plan's noise.
    deviation = noise * clip * (3 / 2) ** 0.5
    assert float(np.linalg.norm(values)) < 36 * clip + 2 * deviation * size**0.5
    assert float(np.linalg.norm(values)) > 0.5 * deviation * size**0.5


def test_a_share_by_itself_is_noise_without_end(sharing: Sharing, sites: list[Site]) -> None:
    asked = set_of(*(sharing.ready(site) for site in sites))
    words = np.concatenate([share.values for share in shares(sites, asked)]).astype(np.int64)
    assert abs(words.mean() - 2**15) < 6 * 2**16 / (12 * words.size) ** 0.5
    assert words.min() < 2**13 and words.max() > 2**16 - 2**13


def test_that_a_site_is_ready_costs_nothing_and_samples_nothing(
    sharing: Sharing, sites: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unexpected(*arguments: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(DpLora, "clipped_sum", unexpected)
    monkeypatch.setattr(DpLora, "prepare", unexpected)
    site = sites[0]
    rows = site.ledger.head.rows
    sharing.ready(site)
    assert site.ledger.head.rows == rows
    assert site.ledger.epsilon_spent == 0


def test_a_repeated_request_gets_the_same_key_and_another_one_another(
    sharing: Sharing, sites: list[Site]
) -> None:
    site = sites[0]
    first = sharing.ready(site)
    assert sharing.ready(site) == first
    assert sharing.ready(site, 1).member.key != first.member.key
    assert sharing.ready(site).member.key != first.member.key


def test_the_same_set_gets_the_stored_share_and_another_is_refused_for_ever(
    sharing: Sharing, sites: list[Site]
) -> None:
    ready = [sharing.ready(site) for site in sites]
    asked = set_of(*ready)
    reply, first = sites[0].share(asked)
    assert (reply.kind, reply.slot) == ("masked-share", 0)
    rows = sites[0].ledger.head.rows
    _, again = sites[0].share(asked)
    assert (first.values == again.values).all()
    for other in (set_of(*ready[:2]), set_of(*ready, bits=32)):
        with pytest.raises(SlotError, match="another set"):
            sites[0].share(other)
    with pytest.raises(SlotError, match="given its share"):
        sites[0].step(request(0), sharing.vector)
    assert sites[0].ledger.head.rows == rows


def test_the_stored_share_outlives_the_process_and_a_key_does_not(
    sharing: Sharing, sites: list[Site]
) -> None:
    asked = set_of(*(sharing.ready(site) for site in sites))
    _, first = sites[0].share(asked)
    sites[0].close()
    sites[1].close()
    restarted, lost = sharing.open("clinic"), sharing.open("hospital")
    _, again = restarted.share(asked)
    assert (first.values == again.values).all()
    lost.consider(sharing.sharing)
    with pytest.raises(ShareLostError):
        lost.share(asked)
    assert lost.ledger.epsilon_spent == 0
    sites[:2] = [restarted, lost]


def test_no_share_is_given_where_a_yes_was_taken_back(sharing: Sharing) -> None:
    sites = [sharing.open(name) for name in NAMES]
    site = sites[0]
    site.settings = dataclasses.replace(site.settings, ask=True)
    state, plan = site.settings.state_dir, site.settings.limits.plan(sharing.sharing, BOTH)
    yes = Asked(plan, BOTH.dataset_id, BOTH.delta)
    Orders.change(state, lambda stands: stands.approving(yes, "a test"))
    for one in sites:
        one.consider(sharing.sharing)
    asked = set_of(*(sharing.ready(one) for one in sites))
    Orders.change(state, lambda stands: stands.refusing("job-1").not_refusing("job-1"))
    with pytest.raises(PausedError, match="waits for somebody"):
        site.share(asked)
    assert site.ledger.head.rows == 1
    for one in sites:
        one.close()


@pytest.mark.slow
def test_a_share_is_computed_until_a_tick(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[float] = []

    @contextmanager
    def noting(seconds: float) -> Iterator[None]:
        began.append(seconds)
        yield

    monkeypatch.setattr(ticks, "_seconds_a_record", lambda *_: 1e-4)
    monkeypatch.setattr(ticks, "until_tick", noting)
    opened = [sharing.open(name, ticks=True) for name in NAMES]
    for site in opened:
        site.consider(sharing.sharing)
    began.clear()  # of preparing the records
    shares(opened, set_of(*(sharing.ready(site) for site in opened)))
    # A sample of half of the 24 units, and a tenth more, may well be all of them.
    assert began == pytest.approx([0.1 + 1.25 * 27 * 1e-4] * 3)
    for site in opened:
        site.close()


def test_the_slot_is_paid_before_anything_is_sampled(
    sharing: Sharing, sites: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, order = sites[0], []
    asked = set_of(*(sharing.ready(site) for site in sites))
    compute = module.shared_step

    def noted(*arguments: Any) -> Any:
        order.append(site.ledger.slots("job-1"))
        return compute(*arguments)

    monkeypatch.setattr(module, "shared_step", noted)
    site.share(asked)
    assert order == [[(0, False)]]
    assert site.ledger.slots("job-1") == [(0, True)]


def test_a_release_is_written_with_the_tag_of_its_set(sharing: Sharing, sites: list[Site]) -> None:
    asked = set_of(*(sharing.ready(site) for site in sites))
    sites[0].share(asked)
    *_, row = sites[0].ledger.rows()
    assert row.kind == "release"
    assert len(row.body["tag"]) == 64


def test_what_fails_after_the_sample_loses_the_share_and_stays_paid(
    sharing: Sharing, sites: list[Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set_of(*(sharing.ready(site) for site in sites))
    with monkeypatch.context() as patch:
        patch.setattr(module, "mask", lambda *_: 1 / 0)
        with pytest.raises(StepFailedError):
            sites[0].share(asked)
    with pytest.raises(ShareLostError):
        sites[0].share(asked)
    with pytest.raises(ShareLostError):  # nobody can have it sampled again
        sharing.ready(sites[0])
    assert sites[0].ledger.slots("job-1") == [(0, False)]


def test_a_set_that_is_wrong_costs_nothing_and_the_right_one_may_still_come(
    sharing: Sharing, sites: list[Site]
) -> None:
    ready = [sharing.ready(site) for site in sites]
    stranger = ready[1].member.model_copy(update={"name": "nobody"})
    forged = ready[1].member.model_copy(update={"signature": "0" * 128})
    old = sharing.ready(sites[2], 1)
    ready[2] = sharing.ready(sites[2])
    for members in (
        (ready[0].member, stranger),
        (ready[0].member, forged),
        (ready[0].member, ready[0].member),
        (ready[1].member, ready[0].member),
        (ready[1].member,),
        (ready[0].member, old.member),
    ):
        with pytest.raises(SetError):
            sites[0].share(SetRequest(job_id="job-1", slot=0, bits=16, members=members))
    assert sites[0].ledger.epsilon_spent == 0
    sites[0].share(set_of(*ready))


def test_another_vector_or_another_proposal_makes_another_slot(
    sharing: Sharing, sites: list[Site]
) -> None:
    ready = [sharing.ready(site) for site in sites[:2]]
    shifted = sites[2].step(request(0), sharing.vector + 1)
    assert isinstance(shifted, Ready)
    with pytest.raises(SetError, match="practice"):
        sites[0].share(set_of(*ready, shifted))


def test_a_slot_that_nobody_asked_for_is_refused(sharing: Sharing, sites: list[Site]) -> None:
    ready = [sharing.ready(site) for site in sites]
    for wrong in (set_of(*ready, slot=1), set_of(*ready, job_id="job-2")):
        with pytest.raises(FedprivError):
            sites[0].share(wrong)
    assert sites[0].ledger.epsilon_spent == 0


def test_nothing_of_a_released_sum_goes_out_without_its_masks(
    sharing: Sharing, sites: list[Site]
) -> None:
    """A server that asks for a plain step gets a word that the site is ready, never a vector."""
    assert isinstance(sites[0].step(request(0), sharing.vector), Ready)
    assert not isinstance(sites[0].step(request(0), sharing.vector), tuple)


@pytest.mark.parametrize(
    ("changes", "limits", "error", "words"),
    [
        ({"roster": "sha256:" + "0" * 64}, {}, LimitError, "secure_sum.digest"),
        ({}, {"roster": None}, LimitError, "roster is none"),
        ({"sites": 4}, {}, LimitError, "counts 4 sites"),
        ({"max_colluding": 0}, {"max_colluding_at_least": 1}, LimitError, "insists on, 1"),
        ({"noise_multiplier": 0.2}, {}, LimitError, r"allow\.min_noise\)"),
        ({"noise_multiplier": 0.5}, {}, LimitError, r"budget\.per_job\)"),
        ({}, {"min_noise_alone": 2.0}, LimitError, r"allow\.min_noise_alone\)"),
        ({}, {"per_job_alone": 5.0}, LimitError, r"budget\.per_job_alone\)"),
    ],
)
def test_what_a_site_does_not_allow_it_refuses(
    sharing: Sharing, changes: Any, limits: Any, error: type[FedprivError], words: str
) -> None:
    site = sharing.open("clinic", **limits)
    asked = sharing.change(shared=sharing.shared.model_copy(update=changes))
    with pytest.raises(error, match=words):
        site.consider(asked)
    assert site.ledger.head.rows == 1
    site.close()


def test_a_ledger_without_a_second_budget_takes_no_secure_sum(sharing: Sharing) -> None:
    settings = dataclasses.replace(sharing.settings("clinic"), terms=TERMS)
    site = Site(settings, sharing.pool, sharing.site_csprng)
    with pytest.raises(LimitError, match="epsilon_alone"):
        site.consider(sharing.sharing)
    site.close()


def test_an_offer_states_both_figures(sharing: Sharing) -> None:
    site = sharing.open("clinic")
    offer = site.consider(sharing.sharing)
    assert offer.noise_multiplier == sharing.shared.noise_multiplier
    assert offer.epsilon_alone is not None
    assert offer.epsilon < 5.0 < offer.epsilon_alone <= 40.0
    site.close()


def test_a_roster_with_another_key_of_the_site_is_refused_when_it_starts(
    sharing: Sharing,
) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex()
    entries = [entry for entry in sharing.roster.entries if entry.name != "clinic"]
    swapped = Roster.of([*entries, RosterEntry(name="clinic", public_key=other)])
    with pytest.raises(
        ConfigError, match="does not have the key with which this site, 'clinic', signs"
    ):
        sharing.open("clinic", roster=swapped)
    sharing.open("clinic").close()  # the ledger was given back


def test_a_private_ledger_shares_nothing_with_noise_that_anybody_could_repeat(
    sharing: Sharing,
) -> None:
    site = Site(
        sharing.settings("clinic"), sharing.pool, lambda job, slot: InsecureRandomness(1, slot)
    )
    site.consider(sharing.sharing)
    with pytest.raises(FedprivError, match="secret randomness"):
        site.step(request(0), sharing.vector)
    site.close()


def test_equal_records_and_other_records_say_the_same_when_they_are_ready(
    sharing: Sharing,
) -> None:
    """But for the key, which is chance."""
    said = []
    for index in range(2):
        rows = [{"note": f"other {index} {i}"} for i in range(24)]
        sharing.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        site = sharing.open("clinic")
        site.consider(sharing.sharing)
        body = sharing.ready(site).model_dump()
        said.append({key: value for key, value in body.items() if key != "member"})
        site.close()
    assert said[0] == said[1] == {"slot": 0}


def test_the_ledger_of_a_secure_sum_reads_back(sharing: Sharing, sites: list[Site]) -> None:
    asked = set_of(*(sharing.ready(site) for site in sites))
    sites[0].share(asked)
    path, rows = sites[0].ledger.path, sites[0].ledger.rows()
    sites[0].close()
    with Ledger.open(path, reading=True) as ledger:
        assert ledger.rows() == rows
        assert ledger.epsilon_alone_spent > ledger.epsilon_spent > 0
        ledger.check_outbox()
    sites[0] = sharing.open("clinic")


def test_a_proposal_of_a_secure_sum_has_no_local_steps_and_no_looks(sharing: Sharing) -> None:
    known = sharing.sharing.model_dump(mode="json")
    with pytest.raises(ProtocolError, match="wire"):
        Proposal.parse(json.dumps({**known, "wire": "int8"}))
    with pytest.raises(ProtocolError, match="max_colluding"):
        Proposal.parse(json.dumps({**known, "shared": {**known["shared"], "max_colluding": 3}}))
    assert StepReply.model_fields["kind"]


def test_a_lifetime_report_counts_the_secure_sums_to_come(sharing: Sharing) -> None:
    lasting = dataclasses.replace(BOTH, rule=SumRule(1e-4))
    settings = sharing.settings("clinic", max_colluding_at_least=2)
    site = Site(dataclasses.replace(settings, terms=lasting), sharing.pool, sharing.site_csprng)
    report = write_budget_report(site, "none")
    assert report.max_colluding == 2
    assert "at most 2 of them" in report.trust_model
    site.close()
