"""A site and a controller that nobody trusts: whatever it decides, it can spend nothing more."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.config.groups import Decision, Grouping, GroupTerms
from fedpriv.config.looks import LooksSection
from fedpriv.errors import (
    FedprivError,
    LimitError,
    ProtocolError,
    SlotError,
    StepFailedError,
)
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.mechanism import execution as mechanism
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.grid import step_of
from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP
from fedpriv.protocol import Centres, Proposal, StepRequest
from fedpriv_client import site as module
from fedpriv_client.site import Site
from tests.client.client_setting import TERMS, Setting, request
from tests.example_counts import examples

Make = Callable[..., Any]
COUNTS: dict[Grouping, int] = {"model": 1, "layers": 2, "adapters": 2, "matrices": 4}
STEPS, MIN_NOISE = 4, 0.6
RDP = RdpRule.best(TERMS.budget, TERMS.delta)


def decision(count: int = 2, norm: float = 1.0) -> Decision:
    """Alike for all groups."""
    return Decision(clip_norms=(norm,) * count, weights=(1 / count,) * count)


def grouped(by: Grouping = "adapters", **changes: Any) -> GroupTerms:
    return GroupTerms(by=by, count=COUNTS[by], **changes)


def ruled(rule: Rule, **changes: Any) -> Terms:
    return dataclasses.replace(TERMS, rule=rule, **changes)


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


class Drawn:
    """The rates and noise multipliers that the steps of a site were really drawn with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int, clip_norm: float) -> None:
        self.rates: list[float] = []
        self.noises: list[float] = []
        sample, gaussian = mechanism.poisson_sample, mechanism.rounded_gaussian

        def sampled(population: int, rate: float, csprng: Any) -> Any:
            self.rates.append(rate)
            return sample(population, rate, csprng)

        def noised(values: int, deviation: float, csprng: Any) -> Any:
            self.noises.append(deviation * step_of("default", clip_norm, size) / clip_norm)
            return gaussian(values, deviation, csprng)

        monkeypatch.setattr(mechanism, "poisson_sample", sampled)
        monkeypatch.setattr(mechanism, "rounded_gaussian", noised)


class Hostile:
    """A site that a server asks for anything, with what has to be so after each request.

    Attributes:
        paid: slot → the digest of the request that has it for ever, and the bytes it was given.
    """

    def __init__(self, site: Site, vectors: list[Any], drawn: Drawn) -> None:
        self.site, self.vectors, self.drawn = site, vectors, drawn
        self.paid: dict[int, tuple[str, bytes]] = {}

    @property
    def job(self) -> Any:
        assert self.site._job is not None
        return self.site._job

    def ask(self, asked: StepRequest, vector: int) -> None:
        digest, head = asked.digest(self.vectors[vector]), self.site.ledger.head
        known, may = self.paid.get(asked.slot), self.may(asked)
        try:
            answer = self.site.step(asked, self.vectors[vector])
        except StepFailedError:
            raise AssertionError("a request failed after it was paid") from None
        except FedprivError as error:
            assert self.site.ledger.head == head, "what is refused costs nothing"
            if known is None:
                assert not may, f"refused what it should have paid for: {error}"
            elif known[0] == digest:
                assert isinstance(error, SlotError) and "kept" in str(error)
        else:
            assert isinstance(answer, tuple)
            payload = answer[1].values.tobytes()
            if known is None:
                assert may, "paid for what it should have refused"
                self.paid[asked.slot] = digest, payload
            else:
                assert known == (digest, payload), "a slot has one request and one reply"
                assert self.site.ledger.head == head, "a repeat costs nothing"
        self.check()

    def may(self, asked: StepRequest) -> bool:
        """Whether a slot that nobody has may be sold for this request."""
        chosen, groups, plan = asked.decision, self.job.proposal.groups, self.job.plan
        if asked.slot >= plan.steps or (chosen is None) != (groups is None):
            return False
        return chosen is None or len(chosen.weights) == groups.count

    def check(self) -> None:
        """What holds whatever was asked."""
        plan, ledger, drawn = self.job.plan, self.site.ledger, self.drawn
        assert len(drawn.noises) == len(drawn.rates) == len(self.paid) <= plan.steps
        assert all(noise >= MIN_NOISE for noise in drawn.noises)
        assert all(rate == plan.sample_rate for rate in drawn.rates)
        assert drawn.noises == pytest.approx([plan.noise_multiplier] * len(drawn.noises), rel=1e-12)
        assert ledger.epsilon_spent <= ledger.epsilon_committed * 1.001 <= TERMS.budget * 1.001
        rows = [row.body for row in ledger.rows() if row.kind == "reserve"]
        assert [row["slot"] for row in rows] == list(self.paid)


norms = st.one_of(st.sampled_from([MIN_CLIP, 1.0, MAX_CLIP]), st.floats(MIN_CLIP, MAX_CLIP))


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """Of some number of groups."""
    size = draw(st.sampled_from([1, 2, 2, 2, 2, 3]))
    weights = draw(st.lists(st.floats(1e-6, 1.0), min_size=size, max_size=size))
    total = math.fsum(weights)
    return Decision(
        clip_norms=tuple(draw(st.lists(norms, min_size=size, max_size=size))),
        weights=tuple(weight / total for weight in weights),
    )


requests = st.lists(
    st.tuples(
        st.integers(0, STEPS),
        st.one_of(st.none(), decisions(), st.just(decision())),
        st.sampled_from([0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=8,
)
JOBS: dict[str, tuple[GroupTerms | None, Rule]] = {
    "no controller": (None, PlanRule()),
    "fixed noise": (grouped(), PlanRule()),
    "fixed noise, rdp": (grouped(), RDP),
    "fixed noise, sum": (grouped(), SumRule(2e-4)),
}


@pytest.mark.parametrize("kind", JOBS)
def test_no_controller_spends_more_than_the_ledger_has_or_exceeds_a_limit_of_the_site(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    groups, rule = JOBS[kind]
    site = setting.site(ruled(rule), min_noise=MIN_NOISE)
    site.consider(setting.change(groups=groups))
    site.ledger.close()
    clip_norm, numbers = setting.proposal.privacy.clip_norm, count()

    def nothing(self: Any, worker: Any, *_: Any) -> ClippedSum:
        return ClippedSum(zeros(worker.vector.size, None), clip_norm)

    monkeypatch.setattr(DpLora, "clipped_sum", nothing)

    @settings(max_examples=examples(60))
    @given(asked=requests)
    def holds(asked: list[tuple[int, Decision | None, int]]) -> None:
        with monkeypatch.context() as patch:
            drawn = Drawn(patch, setting.vector.size, clip_norm)
            path = tmp_path / f"{next(numbers)}.db"
            with Ledger.create(path, ruled(rule)) as site.ledger:
                hostile = Hostile(site, [setting.vector, setting.vector + 1], drawn)
                for slot, chosen, vector in asked:
                    hostile.ask(request(slot, decision=chosen), vector)
                for slot, chosen, vector in asked[-2:]:  # once more
                    hostile.ask(request(slot, decision=chosen), vector)

    holds()
    site.close()


@pytest.mark.parametrize(
    ("groups", "chosen", "words"),
    [
        (None, decision(), "disagree about a controller"),
        (grouped(), None, "disagree about a controller"),
        (grouped(), decision(3), "expected 2 groups, got 3"),
    ],
    ids=["no controller", "no decision", "other groups"],
)
def test_a_decision_that_does_not_fit_the_job_is_refused_before_it_is_paid(
    setting: Setting, groups: Any, chosen: Any, words: str
) -> None:
    site = setting.site(min_noise=3.0)
    site.consider(setting.change(groups=groups))
    with pytest.raises(ProtocolError, match=words):
        site.step(request(decision=chosen), setting.vector)
    assert site.ledger.head.rows == 1
    site.close()


@pytest.mark.parametrize("change", [{"share": 0.1}, {"rate": 0.5}])
def test_no_decision_moves_the_noise_or_the_rate_of_a_step(change: dict[str, float]) -> None:
    """As those of version 0.2.0 could."""
    fields = request(decision=decision()).model_dump(mode="json")
    StepRequest.parse(json.dumps(fields))
    fields["decision"].update(change)
    with pytest.raises(ProtocolError, match=next(iter(change))):
        StepRequest.parse(json.dumps(fields))


def test_a_job_that_would_choose_its_noise_is_refused(setting: Setting) -> None:
    """As those of version 0.2.0 could."""
    fields = setting.change(groups=grouped()).model_dump(mode="json")
    Proposal.parse(json.dumps(fields))
    fields["groups"]["adaptive"] = True
    with pytest.raises(ProtocolError, match=r"groups\.adaptive"):
        Proposal.parse(json.dumps(fields))


def test_groups_are_those_of_the_sites_own_model(setting: Setting) -> None:
    site = setting.site()
    with pytest.raises(ProtocolError, match="the model has 4 matrices, the job counts 5"):
        site.consider(setting.change(groups=GroupTerms(by="matrices", count=5)))
    assert site.ledger.head.rows == 1
    site.close()


def test_a_look_has_no_decision(setting: Setting) -> None:
    looks = LooksSection(looks=1, slots=1)
    site = setting.site(evaluation=True, held_out=10)
    site.consider(setting.change(groups=grouped(), steps=5, evaluation=looks))
    centres = Centres(loss=5.0, accuracy=0.5)
    with pytest.raises(ProtocolError, match="disagree about a controller"):
        site.step(request(4, centres=centres, decision=decision()), setting.vector)
    site.step(request(4, centres=centres), setting.vector)
    site.close()


def test_with_fixed_noise_no_decision_changes_what_is_spent(
    setting: Setting, tmp_path: Path
) -> None:
    """Nor what the ledger says of it, but for the requests' digests."""
    site = setting.site()
    site.consider(setting.change(groups=grouped(by="matrices", bits=0.3)))
    site.ledger.close()
    wild = Decision(clip_norms=(1e-6, 1e6, 1.0, 3.0), weights=(1e-9, 1 - 3e-9, 1e-9, 1e-9))
    said = []
    for number, chosen in enumerate((decision(4), wild, decision(4, norm=MAX_CLIP))):
        with Ledger.create(tmp_path / f"{number}.db", TERMS) as site.ledger:
            spent = []
            for slot in range(STEPS):
                site.step(request(slot, decision=chosen), setting.vector)
                spent.append((site.ledger.epsilon_spent, site.ledger.epsilon_committed))
            bodies = [{**row.body, "request": "", "reply": ""} for row in site.ledger.rows()]
            said.append((spent, [{k: v for k, v in b.items() if k != "at"} for b in bodies]))
    assert said[0] == said[1] == said[2]
    site.close()


@pytest.mark.parametrize("allowed", ["none", "fixed-noise"])
def test_a_site_says_what_a_controller_may_move(setting: Setting, allowed: str) -> None:
    site, asked = setting.site(controller=allowed), setting.change(groups=grouped())
    site.consider(setting.proposal)
    if allowed == "none":
        with pytest.raises(LimitError, match=r"controller: .*not allowed here.*allow\.controller"):
            site.consider(asked)
    else:
        site.consider(asked)
    assert site.ledger.head.rows == 1
    site.close()


@pytest.mark.parametrize("rule", [PlanRule(), RDP], ids=lambda rule: rule.name)
def test_an_offer_has_no_order(setting: Setting, rule: Rule) -> None:
    site = setting.site(ruled(rule))
    assert site.consider(setting.change(groups=grouped())).order is None
    site.close()


@pytest.fixture
def paid(setting: Setting) -> Iterator[tuple[Setting, Proposal, Decision]]:
    chosen = Decision(clip_norms=(0.5, 1.5), weights=(0.3, 0.7))
    yield setting, setting.change(groups=grouped()), chosen


def test_a_slot_keeps_its_decision_when_the_site_starts_again(
    paid: tuple[Setting, Proposal, Decision],
) -> None:
    setting, proposal, chosen = paid
    site = setting.site()
    site.consider(proposal)
    _, first = site.step(request(decision=chosen), setting.vector)  # type: ignore[misc]
    head = site.ledger.head
    site.close()
    site = setting.site()
    site.consider(proposal)
    _, again = site.step(request(decision=chosen), setting.vector)  # type: ignore[misc]
    assert np.array_equal(first.values, again.values)
    for change in ({"clip_norms": (0.5, 1.0)}, {"weights": (0.4, 0.6)}):
        with pytest.raises(SlotError, match="reserved for another request"):
            site.step(request(decision=chosen.model_copy(update=change)), setting.vector)
    assert site.ledger.head == head
    site.close()


def test_a_slot_that_was_paid_and_not_released_is_computed_under_its_decision_only(
    paid: tuple[Setting, Proposal, Decision], monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, proposal, chosen = paid
    site = setting.site()
    site.consider(proposal)
    with monkeypatch.context() as patch:
        patch.setattr(module, "private_step", lambda *_: 1 / 0)
        with pytest.raises(StepFailedError):
            site.step(request(decision=chosen), setting.vector)
    once, head = site.ledger.epsilon_spent, site.ledger.head
    with pytest.raises(SlotError, match="reserved for another request"):
        site.step(request(decision=decision()), setting.vector)
    assert site.ledger.head == head
    site.step(request(decision=chosen), setting.vector)
    assert site.ledger.epsilon_spent == once > 0
    site.close()


def test_noise_that_can_not_be_drawn_is_refused_before_it_is_paid(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many parameters noise is drawn up to some size only; here of few."""
    site = setting.site()
    site.consider(setting.change(groups=grouped()))
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.privacy.mechanism.grid.MAX_DEVIATION", 2.0)
        with pytest.raises(FedprivError, match="Expected noise_multiplier") as caught:
            site.step(request(decision=decision()), setting.vector)
    assert not isinstance(caught.value, StepFailedError)
    assert site.ledger.head.rows == 1
    site.step(request(decision=decision()), setting.vector)
    site.close()


def test_groups_that_are_clipped_together_are_read_and_refused(setting: Setting) -> None:
    """As geometry asked for in version 0.2.0, whose dossiers hold such proposals."""
    site, older = setting.site(), setting.change(groups=grouped(together=True))
    assert Proposal.parse(older.model_dump_json()) == older
    with pytest.raises(ProtocolError, match=r"groups\.together"):
        site.consider(older)
    assert site.ledger.head.rows == 1
    site.close()


def test_a_method_without_groups_has_no_controller(setting: Setting) -> None:
    site = setting.site(methods=("dp-lora", "pe-sgd"))
    asked = setting.change(
        method="pe-sgd", public_records=4, groups=grouped(), settings={"ridge": 1e-3}
    )
    with pytest.raises(FedprivError):
        site.consider(asked)
    assert site.ledger.head.rows == 1
    site.close()
