from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
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
