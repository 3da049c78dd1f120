"""A job that waits for a person: nothing is spent, and a yes is to one proposal alone."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpriv.errors import JobRefusedError, LimitError, PausedError, ProtocolError
from fedpriv.protocol import (
    MAX_PROPOSAL,
    Handover,
    Proposal,
    Refusal,
    ReportRequest,
    SetRequest,
    StepRequest,
)
from fedpriv_client import proposals
from fedpriv_client.app import client_app
from fedpriv_client.held_space import HeldSpace
from fedpriv_client.orders import Orders
from fedpriv_client.proposals import (
    KeptProposal,
    keep_proposal,
    kept_proposals,
    proposals_folder,
)
from fedpriv_client.site import Site
from fedpriv_simulation.inline import InlineGrid
from fedpriv_strategies.messages import QUERY, message
from tests.client.client_setting import TERMS, Setting, request

Make = Callable[..., Any]
SERVER = "fed.example.org:8443"
WAITS = {"refused": "paused", "kind": "PausedError"}


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


def asking(setting: Setting, **others: Any) -> Site:
    return setting.site(server=SERVER, ask=True, **others)


def approve(setting: Setting, proposal: Proposal) -> None:
    Orders.change(
        setting.folder / "state",
        lambda stands: stands.approving(setting.asked(proposal), "a test"),
    )


def answer(site: Site, proposal: Any) -> dict[str, Any]:
    """What leaves, as a server gets it."""

    def permit(job: str) -> None:
        Orders.read(site.settings.state_dir).check(job)

    with InlineGrid({2: client_app(site, permit)}, 1) as grid:
        [reply] = grid.send_and_receive([message(proposal, 2, QUERY, "0")], timeout=60)
    found: dict[str, Any] = json.loads(reply.content["fedpriv"]["body"])
    return found


def test_nothing_happens_before_a_person_has_said_yes(setting: Setting) -> None:
    site = asking(setting)
    for _ in range(2):
        with pytest.raises(PausedError, match="fedpriv-client approve job-1"):
            site.consider(setting.proposal)
    with pytest.raises(ProtocolError, match="made no offer"):
        site.step(request(), setting.vector)
    assert site.ledger.head.rows == 1
    assert site.ledger.epsilon_allocated == site.ledger.epsilon_spent == 0
    approve(setting, setting.proposal)
    assert site.consider(setting.proposal).epsilon > 0
    site.step(request(), setting.vector)
    site.close()


def test_a_yes_is_to_that_very_proposal(setting: Setting) -> None:
    """Whatever is changed in it, under the same id, somebody has to be asked again."""
    site = asking(setting)
    approve(setting, setting.proposal)
    privacy = setting.proposal.privacy.model_copy(update={"epsilon": 5.5})
    for changed in (setting.change(seed=1), setting.change(privacy=privacy)):
        with pytest.raises(PausedError, match="waits for somebody"):
            site.consider(changed)
    assert site.consider(setting.proposal).epsilon > 0
    site.close()


def test_a_yes_survives_a_restart(setting: Setting) -> None:
    site = asking(setting)
    approve(setting, setting.proposal)
    site.close()
    site = asking(setting)
    assert site.consider(setting.proposal).epsilon > 0
    site.close()


def test_a_refused_job_stays_refused(setting: Setting) -> None:
    state = setting.folder / "state"
    site = asking(setting)
    approve(setting, setting.proposal)
    Orders.change(state, lambda stands: stands.refusing("job-1"))
    refused = {"refused": "refused", "kind": "JobRefusedError"}
    assert answer(site, setting.proposal) == answer(site, setting.change(seed=1)) == refused
    with pytest.raises(JobRefusedError, match="--undo"):
        approve(setting, setting.change(seed=1))
    Orders.change(state, lambda stands: stands.not_refusing("job-1"))
    assert "epsilon" not in answer(site, setting.proposal)  # the yes of before is forgotten
    approve(setting, setting.proposal)
    assert "epsilon" in answer(site, setting.proposal)
    site.close()


def test_a_yes_that_was_taken_back_pays_for_nothing_more(setting: Setting) -> None:
    """A no forgets it, and taking the no back does not bring it again."""
    state, site = setting.folder / "state", asking(setting)
    approve(setting, setting.proposal)
    site.consider(setting.proposal)
    Orders.change(state, lambda stands: stands.refusing("job-1").not_refusing("job-1"))
    with pytest.raises(PausedError, match="waits for somebody"):
        site.step(request(), setting.vector)
    assert site.ledger.head.rows == 1
    approve(setting, setting.proposal)
    site.step(request(), setting.vector)
    site.close()


def test_what_goes_beyond_the_limits_is_refused_and_nobody_is_asked(setting: Setting) -> None:
    site = asking(setting, max_steps=3)
    with pytest.raises(LimitError, match="4 steps"):
        site.consider(setting.proposal)
    assert list(kept_proposals(setting.folder / "state")) == []
    site.close()


@pytest.mark.parametrize("fault", ["", "one record less", "nothing can be kept", "no model"])
def test_what_a_waiting_site_answers_depends_on_nothing(
    setting: Setting, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on records, nor on the disk that they take, nor on memory (law 18)."""
    if fault == "one record less":
        setting.data.write_text("".join(setting.data.open().readlines()[1:]))
    site = asking(setting)
    if fault == "nothing can be kept":
        proposals_folder(setting.folder / "state").write_text("no folder")
    if fault == "no model":
        monkeypatch.setattr(Site, "_prepare", lambda *_: pytest.fail("the model was loaded"))
    assert answer(site, setting.proposal) == WAITS
    assert Refusal.of(PausedError("This site is paused.")).model_dump() == WAITS
    site.close()


def test_a_proposal_is_kept_for_people_whether_or_not_they_are_asked(setting: Setting) -> None:
    site = setting.site(server=SERVER)
    offer = site.consider(setting.proposal)
    [kept] = kept_proposals(setting.folder / "state")
    assert kept.proposal == setting.proposal
    assert kept.digest == setting.proposal.digest()
    assert (kept.server, kept.allocated) == (SERVER, offer.epsilon)
    assert kept.plan.noise_multiplier == offer.noise_multiplier
    path = proposals_folder(setting.folder / "state") / f"{kept.digest[7:]}.json"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_mtime_ns
    site.consider(setting.proposal)
    assert path.stat().st_mtime_ns == before
    site.close()


def test_two_budgets_are_kept_for_people_to_see(setting: Setting) -> None:
    terms = dataclasses.replace(TERMS, budget_alone=9.0)
    site = setting.site(terms, server=SERVER)
    site.consider(setting.proposal)
    [kept] = kept_proposals(setting.folder / "state")
    assert kept.allocated_alone == kept.allocated  # a job without a secure sum
    site.close()


def seeds(setting: Setting) -> list[int]:
    return sorted(one.proposal.seed for one in kept_proposals(setting.folder / "state"))


@pytest.mark.parametrize("bound", ["SHARE", "BYTES"])
def test_a_server_that_fills_its_share_gets_one_constant_answer(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """What people still have to decide on stays, and so does what they said yes to."""
    site = asking(setting)
    approve(setting, setting.proposal)
    site.consider(setting.proposal)
    [path] = proposals_folder(setting.folder / "state").iterdir()
    most = {"SHARE": 3, "BYTES": 4 * path.stat().st_size - 1}[bound]
    monkeypatch.setattr(proposals, bound, most)
    flood = [setting.change(seed=10 + number) for number in range(20)]
    assert [answer(site, one) for one in flood] == 20 * [WAITS]
    assert seeds(setting) == [0, 10, 11, 12]
    Orders.change(setting.folder / "state", lambda stands: stands.refusing("job-1"))
    assert answer(site, setting.change(job_id="job-2", seed=50)) == WAITS
    assert seeds(setting) == [10, 11, 12, 50]  # the newest of those that were decided on
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize(("padding", "count"), [(0, 100), (MAX_PROPOSAL - 4096, 1000)])
def test_a_thousand_proposals_stay_within_what_is_held_for_them(
    setting: Setting, padding: int, count: int
) -> None:
    """Undecided ones, each as long as any may be."""
    site = asking(setting)
    said = set()
    for seed in range(count):
        proposal = setting.change(seed=seed, settings={"x": "x" * padding})
        try:
            site.consider(Proposal.parse(proposal.model_dump_json()))
        except PausedError as error:
            said.add((Refusal.of(error).reason, str(error)))
    assert len(said) == 1
    kept = list(proposals_folder(setting.folder / "state").iterdir())
    sizes = [path.stat().st_size for path in kept]
    assert len(kept) == min(proposals.SHARE, proposals.BYTES // max(sizes))
    assert sum(sizes) <= proposals.BYTES
    site.close()


def test_where_nobody_is_asked_the_newest_proposals_are_kept(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposals, "SHARE", 3)
    site = setting.site(server=SERVER)
    site.consider(setting.proposal)
    site.step(request(), setting.vector)
    held = HeldSpace(setting.folder, 0, lambda: 0)
    for seed in range(10, 15):
        other = setting.change(seed=seed, job_id=f"job-{seed}")
        plan = site.settings.limits.plan(other, site.ledger.terms)
        came = KeptProposal(
            server="server:9092",
            first=datetime.now(UTC),
            committed=plan.as_row(),
            allocated=1.0,
            proposal=other,
        )
        keep_proposal(site.settings, held, came, lambda one: one.job == "job-1")
    assert seeds(setting) == [0, 12, 13, 14]  # and the one that has begun
    site.close()


@pytest.mark.parametrize(
    "padding",
    [
        {"model": {"name": "x" * 2**20}},
        {"model": {"name": "x", "task": "classification", "labels": ["x" * 300, "y"]}},
        {"fields": ["text"] * 10_000},
        {"lora": {"target_modules": ["q_proj" * 200]}},
        {"lora": {"modules_to_save": [f"layer.{i}" for i in range(5_000)]}},
        {"privacy": {"unit": "x" * 1000}},
        {"privacy": {"roster": "x" * 2**17}},
        {"settings": {"x": "x" * 2**17}},
        {"settings": {"x": [0.125] * 2**17}},
    ],
)
def test_a_padded_proposal_is_refused_and_kept_nowhere(setting: Setting, padding: Any) -> None:
    """Or whoever sends it would decide how much of a site's disk is free."""
    site = asking(setting)
    found = setting.proposal.model_dump(mode="json")
    for key, value in padding.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) else value
    padded = SimpleNamespace(model_dump_json=lambda: json.dumps(found))
    assert answer(site, padded) == {"refused": "protocol", "kind": "ProtocolError"}
    assert seeds(setting) == []
    site.close()


def test_what_is_kept_is_written_by_the_site(setting: Setting) -> None:
    """Not the sender's bytes, which may be as long as a message."""
    site = asking(setting)
    text = setting.proposal.model_dump_json(indent=1).replace("\n", " " * 4000)
    assert answer(site, SimpleNamespace(model_dump_json=lambda: text)) == WAITS
    [path] = proposals_folder(setting.folder / "state").iterdir()
    assert path.stat().st_size < 4096 < len(text)
    site.close()


def test_every_text_and_list_of_a_message_to_a_site_has_a_largest_length() -> None:
    bodies = (Proposal, StepRequest, SetRequest, ReportRequest, Handover)
    found = {where for body in bodies for where in unbounded(body.model_json_schema())}
    # The first is the coordinator's own and never sent; a whole proposal has a bound, too.
    assert found == {"privacy.roster", "settings"}


def unbounded(schema: Any, where: str = "", top: Any = None) -> Iterator[str]:
    """Where a text, a list or a table of a schema may be of any length."""
    top = top or schema
    if "$ref" in schema:
        schema = top["$defs"][schema["$ref"].rpartition("/")[2]]
    for option in schema.get("anyOf", ()):
        yield from unbounded(option, where, top)
    limits = {"string": {"maxLength", "pattern", "enum", "const"}, "array": {"maxItems"}}
    if (kind := schema.get("type")) in limits and not limits[kind] & schema.keys():
        yield where
    if schema.get("additionalProperties"):
        yield where
    yield from unbounded(schema.get("items", {}), where, top) if "items" in schema else ()
    for name, inner in schema.get("properties", {}).items():
        yield from unbounded(inner, f"{where}.{name}".removeprefix(".proposal").strip("."), top)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}'])
def test_a_kept_proposal_that_was_changed_is_left_out(setting: Setting, text: str) -> None:
    site = asking(setting)
    with pytest.raises(PausedError):
        site.consider(setting.proposal)
    [path] = proposals_folder(setting.folder / "state").iterdir()
    whole = path.read_text()
    path.write_text(text)
    assert list(kept_proposals(setting.folder / "state")) == []
    path.write_text(whole.replace('"seed":0', '"seed":7'))
    with pytest.raises(ValueError, match="another digest"):
        KeptProposal.read(path)
    with pytest.raises(PausedError):
        site.consider(setting.proposal)
    assert KeptProposal.read(path).proposal == setting.proposal
    site.close()
