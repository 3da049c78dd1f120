"""Whatever a server asks a site for, in whatever order, nothing is spent unpaid or twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import FedprivError, SlotError, StepFailedError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.mechanism import execution as mechanism
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.grid import step_of
from fedpriv.protocol import StepRequest
from fedpriv_client import site as module
from fedpriv_client.site import Site
from tests.client.client_setting import TERMS, Setting, request
from tests.example_counts import examples

Make = Callable[..., Any]
STEPS, MIN_NOISE = 4, 0.6
RDP = RdpRule.best(TERMS.budget, TERMS.delta)


def ruled(rule: Rule, **changes: Any) -> Terms:
    return dataclasses.replace(TERMS, rule=rule, **changes)


@pytest.fixture
def setting(tmp_path: Path, model_folder: Make) -> Setting:
    return Setting(tmp_path, model_folder("llama"))


@pytest.fixture
def site(setting: Setting) -> Iterator[Site]:
    """A site that has accepted the job."""
    made = setting.site()
    made.consider(setting.proposal)
    yield made
    made.close()


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
        known, may = self.paid.get(asked.slot), asked.slot < self.job.plan.steps
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


requests = st.lists(
    st.tuples(st.integers(0, STEPS), st.sampled_from([0, 0, 0, 1])), min_size=1, max_size=8
)


@pytest.mark.parametrize("rule", [PlanRule(), RDP, SumRule(2e-4)], ids=lambda rule: rule.name)
def test_no_request_spends_more_than_the_ledger_has_or_exceeds_a_limit_of_the_site(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rule: Rule
) -> None:
    site = setting.site(ruled(rule), min_noise=MIN_NOISE)
    site.consider(setting.proposal)
    site.ledger.close()
    clip_norm, numbers = setting.proposal.privacy.clip_norm, count()

    def nothing(self: Any, worker: Any, *_: Any) -> ClippedSum:
        return ClippedSum(zeros(worker.vector.size, None), clip_norm)

    monkeypatch.setattr(DpLora, "clipped_sum", nothing)

    @settings(max_examples=examples(60))
    @given(asked=requests)
    def holds(asked: list[tuple[int, int]]) -> None:
        with monkeypatch.context() as patch:
            drawn = Drawn(patch, setting.vector.size, clip_norm)
            path = tmp_path / f"{next(numbers)}.db"
            with Ledger.create(path, ruled(rule)) as site.ledger:
                hostile = Hostile(site, [setting.vector, setting.vector + 1], drawn)
                for slot, vector in asked + asked[-2:]:  # the last ones once more
                    hostile.ask(request(slot), vector)

    holds()
    site.close()


@pytest.mark.parametrize("rule", [PlanRule(), RDP], ids=lambda rule: rule.name)
def test_an_offer_has_no_order(setting: Setting, rule: Rule) -> None:
    site = setting.site(ruled(rule))
    assert site.consider(setting.proposal).order is None
    site.close()


def test_a_slot_that_was_paid_and_not_released_is_computed_for_its_request_only(
    setting: Setting, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "private_step", lambda *_: 1 / 0)
        with pytest.raises(StepFailedError):
            site.step(request(), setting.vector)
    once, head = site.ledger.epsilon_spent, site.ledger.head
    with pytest.raises(SlotError, match="reserved for another request"):
        site.step(request(), setting.vector + 1)
    assert site.ledger.head == head
    site.step(request(), setting.vector)
    assert site.ledger.epsilon_spent == once > 0


def test_noise_that_can_not_be_drawn_is_refused_before_it_is_paid(
    setting: Setting, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very many parameters noise is drawn up to some size only; here of few."""
    with monkeypatch.context() as patch:
        patch.setattr("fedpriv.privacy.mechanism.grid.MAX_DEVIATION", 2.0)
        with pytest.raises(FedprivError, match="Expected noise_multiplier") as caught:
            site.step(request(), setting.vector)
    assert not isinstance(caught.value, StepFailedError)
    assert site.ledger.head.rows == 1
    site.step(request(), setting.vector)
