"""A schedule spends its budget and never more."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import Setting
from fedpriv.privacy.accounting.filter import RdpFilter
from tests.controllers.controller_rounds import make, setting_of
from tests.example_counts import examples

ends = st.floats(0.01, 100)


def decisions(setting: Setting, **schedule: Any) -> list[Decision]:
    controller = make("schedule", setting, **schedule)
    return [controller.decide(number) for number in range(1, setting.rounds + 1)]


def noises(setting: Setting, asked: list[Decision]) -> list[float]:
    """What shares of the budget buy where the plan is as proposed."""
    assert setting.filter is not None
    return [setting.filter.noise_of(one.share or 1, one.rate) for one in asked]


def job(rounds: int, order: int, rate: float, noise: float) -> Setting:
    budget = RdpFilter(order, rate, noise, rounds)
    return Setting(("a", "b"), (1, 3), rounds=rounds, clip_norm=1.0, filter=budget)


@settings(max_examples=examples(60), deadline=None)
@given(
    end_noise=ends,
    end_rate=ends,
    shape=st.sampled_from(["linear", "exponential"]),
    rounds=st.integers(1, 150),
    order=st.sampled_from([2, 8, 64]),
    rate=st.sampled_from([0.01, 0.2, 1.0]),
    noise=st.sampled_from([0.7, 1.5, 20.0]),
)
def test_all_of_it_costs_the_budget_and_no_more(
    end_noise: float,
    end_rate: float,
    shape: str,
    rounds: int,
    order: int,
    rate: float,
    noise: float,
) -> None:
    setting = job(rounds, order, rate, noise)
    asked = decisions(setting, end_noise=end_noise, end_rate=end_rate, shape=shape)
    budget = setting.filter
    assert budget is not None
    asked_for = zip(noises(setting, asked), asked, strict=True)
    spent = sum(Fraction(budget.debit(noise, one.rate)) for noise, one in asked_for)
    assert spent <= Fraction(budget.budget)
    assert spent >= Fraction(budget.budget) * Fraction(999, 1000)
    assert max(one.rate for one in asked) == 1.0


@pytest.mark.parametrize("shape", ["linear", "exponential"])
def test_factors_go_from_one_to_their_ends(shape: str) -> None:
    setting = job(11, 8, 0.1, 1.0)
    asked = decisions(setting, end_clip=0.25, end_noise=4.0, end_rate=0.5, shape=shape)
    for values, end in (
        ([one.clip_norms[1] for one in asked], 0.25),
        (noises(setting, asked), 4.0),
        ([one.rate for one in asked], 0.5),
    ):
        found = np.array(values) / values[0]
        if shape == "linear":
            assert found == pytest.approx(np.linspace(1, end, 11))
        else:
            assert found == pytest.approx(end ** np.linspace(0, 1, 11))


def test_without_a_change_it_is_the_plan_itself() -> None:
    setting = job(30, 8, 0.1, 1.0)
    asked = decisions(setting)
    assert noises(setting, asked) == pytest.approx([1.0] * 30, rel=1e-7)
    assert {one.rate for one in asked} == {1.0}


def test_without_a_filter_clip_norms_alone_change() -> None:
    asked = decisions(setting_of(), end_clip=2.0)
    assert {(one.share, one.rate) for one in asked} == {(None, 1.0)}
    assert asked[0].clip_norms == make("fixed").decide(1).clip_norms
    assert np.asarray(asked[-1].clip_norms) == pytest.approx(2 * np.asarray(asked[0].clip_norms))
    assert {one.weights for one in asked} == {make("fixed").decide(1).weights}


def test_a_rate_that_grows_ends_at_the_plans() -> None:
    asked = decisions(job(11, 8, 0.1, 1.0), end_rate=2.0)
    assert asked[0].rate == pytest.approx(0.5) and asked[-1].rate == 1.0


def test_a_long_job_changes_in_even_stages() -> None:
    asked = decisions(job(1010, 8, 0.1, 1.0), end_noise=2.0)
    lengths = [sum(one.share == share for one in asked) for share in {one.share for one in asked}]
    assert len(lengths) == 100 and set(lengths) == {10, 11}
