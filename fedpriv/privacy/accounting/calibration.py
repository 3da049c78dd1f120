"""Solve for the noise, the steps or the rate with which a plan costs at most ε.

A solution is on the safe side: `epsilon_upper` of the plan with it is at most the target.
"""

from __future__ import annotations

import math

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.rdp import epsilon_from_rdp, rdp
from fedpriv.privacy.usual import MAX_STEPS


def calibrate_noise(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """Return the least noise multiplier with which `steps` equal steps cost at most ε.

    Args:
        epsilon: target ε > 0.
        delta: target δ in (0, 1).
        sample_rate: probability in (0, 1] with which a unit is in a step.
        steps: number of steps, >= 1.

    Returns:
        A noise multiplier rounded up to four significant digits, for which `epsilon_upper`
        is at most `epsilon` and, for targets above about 0.05, at least 99.5% of it.

    Raises:
        AccountingError: for arguments outside these ranges, or when no noise multiplier up to
            10⁶ meets the target.

    Source:
        Secant and bisection steps on the upper bound, bracketed by the Rényi bound.

    Privacy:
        Reads no data; the result is public and on the safe side of the target.
    """
    _check_epsilon(epsilon)
    if steps != int(steps) or steps < 1:
        raise AccountingError(f"Expected steps={steps!r} to be an integer >= 1.")

    def cost(noise_multiplier: float) -> float:
        return epsilon_upper([Event(sample_rate, noise_multiplier, steps)], delta)

    def rdp_cost(noise_multiplier: float) -> float:
        return epsilon_from_rdp(rdp(sample_rate, noise_multiplier) * steps, delta)[0]

    Event(sample_rate, 1.0, steps)  # refuses a bad sample_rate before the search
    low, high = 1e-3, 1e6
    if rdp_cost(high) > epsilon:
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to be reachable with delta={delta!r}, "
            f"sample_rate={sample_rate!r} and steps={steps!r}: even noise_multiplier={high:g} "
            "costs more. Allow a larger epsilon or delta, or plan fewer steps."
        )
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rdp_cost(middle) <= epsilon else (middle, high)
    low, ratio = high, 1.05
    while (at_low := cost(low)) <= epsilon and low > 1e-3:
        high, low, ratio = low, low / ratio, ratio**2
    if at_low <= epsilon:
        high = low
    while high / low > 1.0002 and (at_high := cost(high)) < 0.998 * epsilon:
        share = 0.5
        if at_high > 0:  # where the secant, in logarithms, meets 99.9% of the target
            share = math.log(at_high / (0.999 * epsilon)) / math.log(at_high / at_low)
        guess = high * (low / high) ** min(max(share, 0.1), 0.9)
        at_guess = cost(guess)
        if at_guess <= epsilon:
            high = guess
        else:
            low, at_low = guess, at_guess
    result = _round_up(high)
    while cost(result) > epsilon:  # the grid may jitter by a part in a thousand
        result = _round_up(result * 1.0005)
    return result


def _check_epsilon(epsilon: float) -> None:
    """Check that a target ε is positive and finite; else raise AccountingError."""
    if not 0 < epsilon < math.inf:
        raise AccountingError(f"Expected epsilon={epsilon!r} > 0 and finite.")


def _round_up(value: float) -> float:
    """Round to four significant digits, towards +∞."""
    digits = 3 - math.floor(math.log10(abs(value)))
    slack = 1 - math.copysign(1e-12, value)
    return float(round(math.ceil(value * 10**digits * slack) / 10**digits, max(digits, 0)))


def calibrate_steps(
    epsilon: float, delta: float, sample_rate: float, noise_multiplier: float
) -> int:
    """Return the most equal steps that cost at most ε, up to `MAX_STEPS`; 0 if one costs more.

    Raises:
        AccountingError: for an argument outside its range.
    """
    _check_epsilon(epsilon)

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
    """Return the largest rate with which `steps` steps cost at most ε, rounded down to 4 digits.

    Raises:
        AccountingError: for an argument outside its range, or when no rate above 1e-9 will do.
    """
    _check_epsilon(epsilon)

    def fits(rate: float) -> bool:
        return epsilon_upper([Event(rate, noise_multiplier, steps)], delta) <= epsilon

    if fits(1.0):
        return 1.0
    low, high = 1e-9, 1.0
    if not fits(low):
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to be reachable with delta={delta!r}, "
            f"noise_multiplier={noise_multiplier!r} and steps={steps!r}: even a sample_rate of"
            " 1e-09 costs more. Use more noise or fewer steps."
        )
    while high / low > 1.00001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    rate = -_round_up(-low)
    while not fits(rate):  # ε may jitter
        rate = -_round_up(-rate * 0.9995)
    return rate
