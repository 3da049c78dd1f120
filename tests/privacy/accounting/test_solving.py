"""Steps and rates that are solved for are on the safe side, and hardly more than that."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_rate, calibrate_steps
from tests.example_counts import examples

DELTA = 1e-5
rates = st.floats(-4, 0).map(lambda x: 10**x)


@pytest.mark.slow
@settings(max_examples=examples(5), deadline=None)
@given(epsilon=st.floats(-1, 2).map(lambda x: 10**x), q=rates, sigma=st.floats(0.5, 8))
def test_the_most_steps_are_the_most(epsilon: float, q: float, sigma: float) -> None:
    steps = calibrate_steps(epsilon, DELTA, q, sigma)
    assert steps == 0 or epsilon_upper([Event(q, sigma, steps)], DELTA) <= epsilon
    dearer = Event(q, sigma, math.ceil(1.01 * steps) + 1)  # the grid jitters by 0.1%
    assert epsilon_upper([dearer], DELTA) > epsilon or steps >= 10**9


@settings(max_examples=examples(10), deadline=None)
@given(epsilon=st.floats(-1, 1).map(lambda x: 10**x), steps=st.integers(1, 500))
def test_the_largest_rate_is_the_largest(epsilon: float, steps: int) -> None:
    rate = calibrate_rate(epsilon, DELTA, 2.0, steps)
    assert epsilon_upper([Event(rate, 2.0, steps)], DELTA) <= epsilon
    assert rate == 1 or epsilon_upper([Event(min(1.0, 1.01 * rate), 2.0, steps)], DELTA) > epsilon


def test_what_no_rate_can_reach_is_refused() -> None:
    with pytest.raises(AccountingError, match="even a sample_rate"):
        calibrate_rate(1e-4, 1e-12, 0.3, 10**6)
    assert calibrate_steps(0.1, 1e-6, 1.0, 0.5) == 0
