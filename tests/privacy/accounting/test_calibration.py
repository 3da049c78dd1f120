from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import (
    calibrate_delta,
    calibrate_noise,
    calibrate_rate,
    calibrate_steps,
)
from tests.example_counts import examples

DELTA = 1e-5
rates = st.floats(-4, 0).map(lambda x: 10**x)


@pytest.mark.parametrize(
    ("epsilon", "delta", "q", "steps"),
    [
        (8, 1e-5, 0.05, 100),
        (3, 1e-5, 0.02, 400),
        (1, 1e-6, 0.01, 100),
        (0.1, 1e-5, 0.01, 100),
        (5, 1e-5, 1.0, 10),
        (300, 1e-5, 0.2, 1000),
        (2, 1e-12, 0.1, 100),
        (1, 0.3, 0.1, 100),
    ],
)
def test_calibration_meets_its_target(epsilon: float, delta: float, q: float, steps: int) -> None:
    sigma = calibrate_noise(epsilon, delta, q, steps)
    spent = epsilon_upper([Event(q, sigma, steps)], delta)
    assert 0.995 * epsilon <= spent <= epsilon
    assert float(f"{sigma:.4g}") == sigma
    assert epsilon_upper([Event(q, 0.99 * sigma, steps)], delta) > epsilon


@settings(max_examples=examples(10), deadline=None)
@given(epsilon=st.floats(-3, 2).map(lambda x: 10**x), q=rates, steps=st.integers(1, 100))
def test_calibration_is_never_above_its_target(epsilon: float, q: float, steps: int) -> None:
    assert epsilon_upper([Event(q, calibrate_noise(epsilon, DELTA, q, steps), steps)], DELTA) <= (
        epsilon
    )


def test_calibration_refuses_what_no_noise_can_reach() -> None:
    with pytest.raises(AccountingError, match=r"epsilon=1e-12 to be reachable"):
        calibrate_noise(1e-12, 1e-9, 1.0, 10**9)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 1e-5, 0.1, 1), "epsilon=0"),
        ((math.inf, 1e-5, 0.1, 1), "epsilon=inf"),
        ((1, 0, 0.1, 1), "delta=0"),
        ((1, 1e-5, 0, 1), "sample_rate=0"),
        ((1, 1e-5, 1.5, 1), "sample_rate=1.5"),
        ((1, 1e-5, 0.1, 0), "steps=0"),
        ((1, 1e-5, 0.1, 1.5), "steps=1.5"),
    ],
)
def test_calibration_refuses(arguments: tuple[float, float, float, int], match: str) -> None:
    with pytest.raises(AccountingError, match=f"Expected {match}"):
        calibrate_noise(*arguments)


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


@settings(max_examples=examples(10), deadline=None)
@given(epsilon=st.floats(0.5, 8), sigma=st.floats(0.7, 3))
def test_the_least_delta_is_the_least(epsilon: float, sigma: float) -> None:
    delta = calibrate_delta(epsilon, 0.05, sigma, 100)
    assert epsilon_upper([Event(0.05, sigma, 100)], delta) <= epsilon
    if delta > 1e-29:
        assert epsilon_upper([Event(0.05, sigma, 100)], 0.9 * delta) > epsilon


@pytest.mark.parametrize(
    ("epsilon", "q", "sigma", "steps"),
    [
        (0.5626831924761785, 0.0004114060946535194, 1.134558973216835, 85),
        (0.28193035258536386, 0.0016191993800808927, 2.328434504774281, 46),
    ],
)
def test_rounding_delta_up_does_not_overrun(
    epsilon: float, q: float, sigma: float, steps: int
) -> None:
    """Where ε is a little more at the rounded δ than at the smaller one that fits."""
    delta = calibrate_delta(epsilon, q, sigma, steps)
    assert epsilon_upper([Event(q, sigma, steps)], delta) <= epsilon


def test_what_no_rate_or_delta_can_reach_is_refused() -> None:
    with pytest.raises(AccountingError, match="even a sample_rate"):
        calibrate_rate(1e-4, 1e-12, 0.3, 10**6)
    with pytest.raises(AccountingError, match=r"even a delta of 0\.5"):
        calibrate_delta(0.01, 1.0, 0.1, 10)
    assert calibrate_steps(0.1, 1e-6, 1.0, 0.5) == 0
