"""Solve for the steps, the rate or the δ with which a plan costs at most ε.

Each solution is on the safe side: `epsilon_upper` of the plan with it is at most the target.
"""

from __future__ import annotations

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import bisect, check_epsilon, rounded
from fedpriv.privacy.usual import MAX_STEPS


def calibrate_steps(
    epsilon: float, delta: float, sample_rate: float, noise_multiplier: float
) -> int:
    """Return the most equal steps that cost at most ε, up to `MAX_STEPS`; 0 if one costs more.

    Raises:
        AccountingError: for an argument outside its range.
    """
    check_epsilon(epsilon)

    def fits(steps: int) -> bool:
        return epsilon_upper([Event(sample_rate, noise_multiplier, steps)], delta) <= epsilon

    low, high = 0, 1
    while high <= MAX_STEPS and fits(high):
        low, high = high, 2 * high
    high = min(high, MAX_STEPS + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def calibrate_rate(epsilon: float, delta: float, noise_multiplier: float, steps: int) -> float:
    """Return the largest sample rate with which `steps` steps cost at most ε, to 4 digits, down.

    Raises:
        AccountingError: for an argument outside its range, or when no rate above 1e-9 will do.
    """
    check_epsilon(epsilon)

    def fits(rate: float) -> bool:
        return epsilon_upper([Event(rate, noise_multiplier, steps)], delta) <= epsilon

    rate = bisect(fits, 1.0, 1e-9)
    if rate is None:
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to be reachable with delta={delta!r}, "
            f"noise_multiplier={noise_multiplier!r} and steps={steps!r}: even a sample_rate of"
            " 1e-09 costs more. Use more noise or fewer steps."
        )
    return rate if rate == 1 else rounded(fits, rate, -1)


def calibrate_delta(
    epsilon: float, sample_rate: float, noise_multiplier: float, steps: int
) -> float:
    """Return the least δ at which `steps` steps cost at most ε, to 4 digits, up.

    Raises:
        AccountingError: for an argument outside its range, or when δ would be above 0.5.
    """
    check_epsilon(epsilon)

    def fits(delta: float) -> bool:
        return epsilon_upper([Event(sample_rate, noise_multiplier, steps)], delta) <= epsilon

    delta = bisect(fits, 1e-30, 0.5)
    if delta is None:
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to be reachable with sample_rate={sample_rate!r}, "
            f"noise_multiplier={noise_multiplier!r} and steps={steps!r}: even a delta of 0.5 is"
            " too small. Use more noise or fewer steps."
        )
    return rounded(fits, delta, 1)
