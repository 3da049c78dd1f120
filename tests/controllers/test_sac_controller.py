"""It learns, within its bounds and within the budget."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.controllers.base import Controller, Setting
from fedpriv.privacy.accounting.filter import RdpFilter
from tests.controllers.controller_rounds import make, seen_of, setting_of
from tests.example_counts import examples

FAST = {"encoder": 32, "warm_up": 40, "updates": 4, "replay": 10_000}
RATE = "fedpriv.controllers.sac_networks.RATE"
PACE_RANGE = "fedpriv.controllers.sac.PACE_RANGE"
UNITS = 20.0  # in a round


def world(controller: Controller, rounds: int, *, with_loss: bool) -> np.ndarray[Any, Any]:
    """The weight of the first of two groups, which alone has gradients, round by round.

    Every unit's gradient has the norm 1 there. The loss falls by as much of 0.1 as is signal in
    that group; what happens in the other one does not change it.
    """
    drawn, found, loss = np.random.default_rng(0), [], 5.0
    sizes = np.array([50.0, 50.0])
    for number in range(1, rounds + 1):
        decision = controller.decide(number)
        clip_norms, weights = np.asarray(decision.clip_norms), np.asarray(decision.weights)
        deviation = clip_norms / np.sqrt(weights) / UNITS
        signal = np.array([min(1.0, clip_norms[0]) ** 2, 0.0])
        noise = sizes * deviation**2
        loss -= 0.1 * signal[0] / (signal[0] + noise[0])
        seen_loss = loss + 0.001 * drawn.normal() if with_loss else None
        squared = signal + noise * drawn.normal(0, np.sqrt(2 / sizes))
        seen = seen_of(number, decision, squared, deviation=deviation, loss=seen_loss)
        controller.see(seen)
        found.append(weights[0])
    return np.array(found)


@pytest.mark.nightly
@pytest.mark.parametrize("with_loss", [True, False])
def test_it_finds_the_group_that_has_all_the_signal(
    monkeypatch: pytest.MonkeyPatch, with_loss: bool
) -> None:
    monkeypatch.setattr(RATE, 3e-3)
    monkeypatch.setattr("fedpriv.controllers.sac.BATCH", 32)
    setting = setting_of((50, 50), rounds=140, clip_norm=1.0)
    found = world(make("sac", setting, **FAST), 140, with_loss=with_loss)
    assert 0.35 < found[:40].mean() < 0.65  # at first, anything
    assert found[-40:].mean() > 0.7


@pytest.mark.parametrize("losses", [[5.0, 4.0, 4.5], [5.0, None, 4.5]])
def test_a_reward_is_the_fall_of_the_loss(losses: list[float | None]) -> None:
    controller = make("sac")
    for number, loss in enumerate(losses, 1):
        seen = seen_of(number, controller.decide(number), [1.0] * 3, loss=loss)
        controller.see(seen)
    known = [loss for loss in losses if loss is not None]
    falls = [before - after for before, after in pairwise(known)]
    assert controller.state().value["memory.rewards"][:, 0].tolist() == falls


def test_without_a_loss_it_is_the_share_of_signal_and_a_loss_takes_its_place() -> None:
    controller = make("sac")
    for number, squared in enumerate(([3.0, 0.0, 0.0], [0.0, 0.0, -0.5], [0.0, 0.0, 0.0]), 1):
        seen = seen_of(number, controller.decide(number), squared, deviation=[0.1] * 3)
        controller.see(seen)
    rewards = controller.state().value["memory.rewards"][:, 0]
    assert rewards == pytest.approx([3 / 4, -1, 0])  # of 100 parameters with 0.01 each
    controller.see(seen_of(4, controller.decide(4), [0.0] * 3, loss=5.0))
    assert not controller.state().value["memory.rewards"].size


def test_in_an_adaptive_job_a_reward_is_for_an_even_rounds_share() -> None:
    setting = setting_of(adaptive=True)
    controller, found, expected = make("sac", setting), [5.0, 4.0, 3.5], []
    assert setting.filter is not None
    for number, loss in enumerate(found, 1):
        decision = controller.decide(number)
        controller.see(seen_of(number, decision, [1.0] * 3, loss=loss))
        if number > 1:
            assert decision.share is not None
            expected.append((found[number - 2] - loss) / (decision.share * setting.rounds))
    assert controller.state().value["memory.rewards"][:, 0] == pytest.approx(expected)


def test_a_decision_stands_for_its_interval() -> None:
    controller = make("sac", interval=3)
    found = []
    for number in range(1, 10):
        found.append(controller.decide(number))
        controller.see(seen_of(number, found[-1], [1.0] * 3, loss=float(-number)))
    assert found[0] == found[1] == found[2] != found[3] == found[4] == found[5] != found[6]
    assert controller.state().value["memory.rewards"][:, 0].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("warm_up", [0, 1000])
def test_its_decisions_stay_within_their_ranges(
    monkeypatch: pytest.MonkeyPatch, warm_up: int
) -> None:
    monkeypatch.setattr(RATE, 0.1)
    monkeypatch.setattr("fedpriv.controllers.sac.CLIP_RANGE", 3.0)
    monkeypatch.setattr("fedpriv.controllers.sac.WEIGHT_RANGE", 2.0)
    setting = setting_of(rounds=60)
    controller = make("sac", setting, warm_up=warm_up)
    start = np.asarray(make("fixed", setting).decide(1).clip_norms)
    for number in range(1, 60):
        decision = controller.decide(number)
        clip_norms, weights = np.asarray(decision.clip_norms), np.asarray(decision.weights)
        assert (np.abs(np.log(clip_norms / start)) <= math.log(3) + 1e-9).all()
        factors = weights / (clip_norms * np.sqrt(setting.shares))
        assert factors.max() / factors.min() <= 4 + 1e-9
        controller.see(seen_of(number, decision, [1e9 * number, 1.0, -1.0], loss=float(number)))


@settings(max_examples=examples(40), deadline=None)
@given(
    rounds=st.integers(1, 40),
    pace_range=st.sampled_from([1.0, 2.0, 100.0]),
    seed=st.integers(0, 1000),
    noise=st.sampled_from([0.7, 1.5, 20.0]),
)
def test_the_budget_is_used_up_and_never_overrun(
    rounds: int, pace_range: float, seed: int, noise: float
) -> None:
    budget = RdpFilter(8, 0.1, noise, rounds)
    setting = Setting(("a",), (5,), rounds, 1.0, seed=seed, filter=budget)
    controller = make("sac", setting, warm_up=1000)
    spent, shares = Fraction(0), []
    for number in range(1, rounds + 1):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PACE_RANGE, pace_range)
            decision = controller.decide(number)
        assert decision.share is not None
        shares.append(decision.share)
        spent += Fraction(budget.debit(budget.noise_of(decision.share)))
        controller.see(seen_of(number, decision, [1.0], spent=sum(shares)))
    assert spent <= Fraction(budget.budget)
    assert spent >= Fraction(budget.budget) * Fraction(999, 1000)
    if pace_range == 1:
        assert shares == pytest.approx([1 / rounds] * rounds, rel=1e-6)


def test_rounds_that_were_lost_leave_more_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PACE_RANGE, 1.0)
    setting = setting_of(adaptive=True)
    controller = make("sac", setting)
    assert controller.decide(1).share == pytest.approx(1 / 12)
    assert controller.decide(7).share == pytest.approx(1 / 6)  # six are left for all of it
    controller.see(seen_of(1, controller.decide(1), [1.0] * 3, spent=0.9))
    # What the server says is spent is spent.
    assert controller.decide(2).share == pytest.approx(0.1 / 11, rel=1e-6)


def test_it_draws_nothing_from_the_processs_own_generator() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    controller = make("sac")
    for number in range(1, 6):
        controller.see(seen_of(number, controller.decide(number), [1.0] * 3, loss=1.0 / number))
    assert torch.equal(torch.rand(3), expected)


def test_of_what_it_remembers_it_forgets_the_oldest() -> None:
    controller = make("sac", setting_of(rounds=30), replay=5)
    for number in range(1, 11):
        loss = -float(number**2)
        controller.see(seen_of(number, controller.decide(number), [1.0] * 3, loss=loss))
    rewards = controller.state().value["memory.rewards"][:, 0]
    assert rewards.tolist() == [11.0, 13.0, 15.0, 17.0, 19.0]
