from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.accounting.planning import filtered, solve
from tests.example_counts import examples

DELTA = 1e-5


@settings(max_examples=examples(15), deadline=None)
@given(
    epsilon=st.floats(0.5, 10),
    q=st.floats(-3, 0).map(lambda x: 10**x),
    steps=st.integers(1, 500),
)
def test_a_filter_costs_more_by_what_is_said(epsilon: float, q: float, steps: int) -> None:
    planned = solve(epsilon=epsilon, delta=DELTA, sample_rate=q, steps=steps)
    found, sigma = filtered(planned), planned.event.noise_multiplier
    same = RdpFilter(found.order, q, found.noise_multiplier, steps)
    assert same.epsilon(DELTA) <= epsilon
    assert found.noise_multiplier >= sigma * (1 - 1e-3)  # of the digits it is rounded to
    assert found.noise_percent == pytest.approx(100 * (found.noise_multiplier / sigma - 1))
    assert found.epsilon >= planned.epsilon
    assert found.epsilon_percent == pytest.approx(100 * (found.epsilon / planned.epsilon - 1))


def test_without_a_target_it_is_the_epsilon_of_the_plan() -> None:
    planned = solve(delta=DELTA, sample_rate=0.05, steps=100, noise_multiplier=1.0)
    found = filtered(planned)
    assert RdpFilter(found.order, 0.05, found.noise_multiplier, 100).epsilon(DELTA) <= (
        planned.epsilon
    )


def test_what_no_filter_bounds_is_infinite() -> None:
    dear = solve(delta=DELTA, sample_rate=1.0, steps=1, noise_multiplier=1e-3)
    assert math.isfinite(filtered(dear).epsilon)
