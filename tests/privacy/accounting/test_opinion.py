"""The second opinion: held against exact values, and asked only of what it can compute."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.opinion import Opinion, opinion


def exact(noise: float, delta: float) -> float:
    """ε of the Gaussian mechanism: Balle and Wang 2018, Theorem 8."""

    def more(epsilon: float) -> float:
        a, b = 1 / (2 * noise), epsilon * noise
        return float(norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)) - delta

    return float(brentq(more, 0.0, 100.0))


@pytest.mark.parametrize(("noise", "count", "delta"), [(5.0, 10, 1e-5), (1.0, 1, 1e-9)])
def test_without_sampling_it_holds_the_exact_value(noise: float, count: int, delta: float) -> None:
    found, true = opinion((Event(1.0, noise, count),), delta), exact(noise / count**0.5, delta)
    assert found.lower <= true <= found.upper
    assert found.estimate == pytest.approx(true, rel=2e-3)
    assert found.upper - found.lower < 0.025 * true


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delta", "events"),
    [
        (1e-5, (Event(0.2, 0.9446, 4),)),
        (1e-5, (Event(0.01, 1.0, 1000),)),
        (1e-9, (Event(0.5, 2.0, 50),)),
        (1e-5, (Event(0.02, 1.0, 100), Event(0.1, 2.0, 10), Event(1.0, 8.0, 3))),
    ],
)
def test_ours_is_within_its_bounds_and_that_of_other_noise_is_not(
    delta: float, events: tuple[Event, ...]
) -> None:
    found = opinion(events, delta)
    assert found.holds(epsilon_upper(events, delta))
    for factor in (0.95, 1.05):
        other = [Event(e.sample_rate, factor * e.noise_multiplier, e.count) for e in events]
        assert not found.holds(epsilon_upper(other, delta))


def test_a_bound_may_differ_by_one_hundredth() -> None:
    found = Opinion(2.0, 2.5, 3.0)
    assert found.holds(1.981) and found.holds(3.029)
    assert not found.holds(1.979) and not found.holds(3.031) and not found.holds(math.inf)


def test_steps_that_are_none_cost_nothing() -> None:
    assert opinion((Event(0.1, 1.0, 0),), 1e-5) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("event", "delta", "words"),
    [
        (Event(0.2, 0.5, 1000), 1e-5, "differs from continuous mean"),
        (Event(0.01, 1.0, 10**9), 1e-5, "too fine"),
        (Event(0.1, 0.0, 5), 1e-5, "too fine"),
        (Event(0.1, 2.0, 5), 1e-18, "Floating point errors"),
    ],
)
def test_what_it_can_not_compute_is_said(event: Event, delta: float, words: str) -> None:
    with pytest.raises(AccountingError, match=f"can't compute this one: .*{words}"):
        opinion((event,), delta)


def test_it_is_loaded_when_it_is_asked_and_needs_no_torch() -> None:
    code = (
        "import sys; from fedpriv.privacy.accounting.opinion import Event, opinion\n"
        "assert 'prv_accountant' not in sys.modules\n"
        "opinion((Event(0.2, 2.0, 3),), 1e-5)\n"
        "assert 'prv_accountant' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
