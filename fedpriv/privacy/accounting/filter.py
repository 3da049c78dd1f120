"""A Rényi filter: noise and rates that are chosen slot by slot, within a budget fixed before.

A plan of T slots at (q, σ) has at an order α a Rényi budget of T·ρ_α(q, σ). Slot t may ask for
another rate q_t ≤ q and another noise σ_t, chosen by whatever was released before it. Its debit
ρ_α(q_t, σ_t) is taken from the budget before it runs, and a slot whose debit is more than what is
left does not run. All that ran is then (α, budget)-RDP, which converts to (ε, δ) as for any
mechanism.

Why, in full. Let M_t be the mechanism of slot t given the releases y_1…y_{t−1}, on which its
parameters depend: for *every* such history its Rényi divergence of order α between neighbours is
at most ρ_t = ρ_α(q_t, σ_t), a function of the history alone. Write L for the likelihood ratio of
y_1…y_t between two neighbouring data sets, and condition on the history:

    E[L_t^α · exp(−(α−1)·Σ_{s≤t} ρ_s)]  ≤  E[L_{t−1}^α · exp(−(α−1)·Σ_{s≤t−1} ρ_s)]  ≤ … ≤ 1

(expectations under the second data set): a supermartingale. Where Σ ρ_s ≤ budget holds surely,
as the filter makes sure, E[L^α] ≤ exp((α−1)·budget). That is fully adaptive composition at a fixed
order (Feldman and Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter", Theorem 4.3;
Lécuyer 2021, "Practical Privacy Filters and Odometers with Rényi Differential Privacy";
Rogers, Roth, Ullman and Vadhan 2016, "Privacy Odometers and Filters", for what a filter is).

The order has to be fixed before the first slot: at the best order of what ran, which depends on
what was released, the argument fails. And the numerical accountant (`accountant`) composes events
that were fixed before; it has no such theorem, so a filtered plan is charged for at α, and costs
more than the same plan with fixed noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.accounting.calibration import bisect, check_epsilon, rounded
from fedpriv.privacy.accounting.rdp import ORDERS, epsilon_from_rdp, rdp
from fedpriv.privacy.usual import MAX_NOISE, MAX_STEPS

ULP = 1 + 1e-12  # debits are rounded up, so that a sum of roundings never gains
_LEAST, _MOST = 1e-3, 1e6  # noise multipliers that a calibration looks at


@dataclass(frozen=True)
class RdpFilter:
    """The filter of one plan; a slot is asked for relative to the plan's rate and noise.

    Args:
        order: α, an integer from 2 to 512, fixed before the first slot.
        sample_rate: q, the plan's rate in (0, 1], the largest rate of a slot.
        noise_multiplier: σ, the plan's noise, > 0.
        steps: T, the number of steps that the budget is for, and the most slots.

    Raises:
        AccountingError: for values outside these ranges.

    Privacy:
        Public numbers only. What pays is `budget`, in full, however it is used; see the module.
    """

    order: int
    sample_rate: float
    noise_multiplier: float
    steps: int

    def __post_init__(self) -> None:
        if type(self.order) is not int or not 2 <= self.order <= ORDERS[-1]:
            raise AccountingError(
                f"Expected order={self.order!r} to be an integer from 2 to {ORDERS[-1]}."
            )
        if not 0 < self.noise_multiplier <= MAX_NOISE:
            raise AccountingError(
                f"Expected noise_multiplier={self.noise_multiplier!r} > 0 and <= {MAX_NOISE:g}."
            )
        if type(self.steps) is not int or not 1 <= self.steps <= MAX_STEPS:
            raise AccountingError(
                f"Expected steps={self.steps!r} to be an integer from 1 to {MAX_STEPS:g}."
            )
        Event(self.sample_rate, self.noise_multiplier, self.steps)

    def event(self, noise: float = 1.0, rate: float = 1.0) -> Event:
        """Return one slot at `noise` times the plan's noise and `rate` times its rate.

        Raises:
            AccountingError: the rate is not in (0, 1], the noise is not positive and finite, or
                either leaves the range that can be accounted for.
        """
        sample_rate = rate * self.sample_rate
        if not (0 < rate <= 1 and sample_rate > 0):
            raise AccountingError(
                f"Expected rate={rate!r} in (0, 1], relative to the plan's {self.sample_rate:g}."
            )
        noise_multiplier = noise * self.noise_multiplier
        if not (0 < noise < math.inf and 0 < noise_multiplier <= MAX_NOISE):
            raise AccountingError(
                f"Expected noise={noise!r} > 0 and finite, relative to the plan's"
                f" {self.noise_multiplier:g}, and at most {MAX_NOISE:g} with it."
            )
        return Event(sample_rate, noise_multiplier, 1)

    def debit(self, noise: float = 1.0, rate: float = 1.0) -> float:
        """Return ρ_α of one such slot in nats, rounded up; infinite if there is hardly any noise.

        Raises:
            AccountingError: as `event`.
        """
        event = self.event(noise, rate)
        divergence = rdp(event.sample_rate, event.noise_multiplier, (self.order,))[0]
        return math.nextafter(float(divergence) * ULP, math.inf)

    @cached_property
    def budget(self) -> float:
        """T·ρ_α(q, σ) in nats, rounded up: no less than T debits at the plan's rate and noise."""
        debit = self.debit()
        return debit if math.isinf(debit) else rounded_up(Fraction(debit) * self.steps)

    def noise_for(self, debit: float, rate: float = 1.0) -> float:
        """Return the least relative noise whose debit is at most `debit`, to 12 digits.

        Args:
            debit: in nats, > 0; more is never taken.
            rate: relative to the plan's, in (0, 1].

        Raises:
            AccountingError: the debit is not positive and finite, or so small that no noise that
                can be accounted for costs as little; or the rate is out of its range.

        Source:
            Bisection in logarithms; a slot's ρ falls with its noise.
        """
        self.event(1.0, rate)
        most = MAX_NOISE / self.noise_multiplier
        while most * self.noise_multiplier > MAX_NOISE:
            most = math.nextafter(most, 0.0)
        if not 0 < debit < math.inf or self.debit(most, rate) > debit:
            raise AccountingError(
                f"Expected debit={debit!r} > 0, finite, and no less than what the most noise costs,"
                f" {self.debit(most, rate):.3g}."
            )
        low, high = min(1.0, most), most  # the least is above `low` and at most `high`
        while self.debit(low, rate) <= debit:
            low, high = low / 2, low
        while high > low * (1 + 1e-12):
            middle = math.sqrt(low) * math.sqrt(high)
            if not low < middle < high:
                break
            low, high = (low, middle) if self.debit(middle, rate) <= debit else (middle, high)
        return high

    def noise_of(self, share: float, rate: float = 1.0) -> float:
        """Return the least relative noise of a slot that costs at most a share of the budget.

        Slots whose shares add up to 1 are all paid for, whatever was rounded.

        Args:
            share: in (0, 1].
            rate: relative to the plan's rate, in (0, 1].

        Raises:
            AccountingError: as `noise_for`.
        """
        return self.noise_for(share * self.budget / ULP**2, rate)

    def epsilon(self, delta: float) -> float:
        """Return ε at δ of the whole budget, converted at this order; an upper bound.

        Raises:
            AccountingError: when δ is outside (0, 1).
        """
        return epsilon_from_rdp(np.array([self.budget]), delta, (self.order,))[0]


def best_order(sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> int:
    """Return the order at which a plan's filter costs least if all of its budget is used.

    Raises:
        AccountingError: for an argument outside its range.

    Privacy:
        Reads no data: of a plan's public numbers, and so fixed before its first slot.
    """
    RdpFilter(2, sample_rate, noise_multiplier, steps)
    return epsilon_from_rdp(rdp(sample_rate, noise_multiplier) * steps, delta)[1]


def calibrate_filtered(
    epsilon: float, delta: float, sample_rate: float, steps: int, order: int | None = None
) -> RdpFilter:
    """Return the filter of `steps` slots that costs at most ε with the least noise.

    Args:
        epsilon: target ε > 0.
        delta: target δ in (0, 1).
        sample_rate: q in (0, 1].
        steps: T >= 1.
        order: α, where a ledger has fixed it; None for the best one.

    Returns:
        A filter whose σ is rounded up to four significant digits, and whose `RdpFilter.epsilon`
        is at most `epsilon`.

    Raises:
        AccountingError: for arguments outside these ranges, or when no noise multiplier up to
            10⁶ meets the target, at that order or at any.

    Source:
        Bisection in logarithms.

    Privacy:
        Reads no data; the result is public and on the safe side of the target.
    """
    check_epsilon(epsilon)
    first = RdpFilter(2 if order is None else order, sample_rate, _LEAST, steps)

    def filtered(noise_multiplier: float) -> RdpFilter:
        chosen = order or best_order(sample_rate, noise_multiplier, steps, delta)
        return replace(first, order=chosen, noise_multiplier=noise_multiplier)

    def fits(noise_multiplier: float) -> bool:
        return filtered(noise_multiplier).epsilon(delta) <= epsilon

    noise = bisect(fits, _LEAST, _MOST)
    if noise is None:
        at_order = "" if order is None else f" at order {order}"
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to be reachable{at_order} with delta={delta!r},"
            f" sample_rate={sample_rate!r} and steps={steps!r}: even noise_multiplier={_MOST:g}"
            " costs more. Allow a larger epsilon or delta, plan fewer steps"
            + (", or use a higher order." if order is not None else ".")
        )
    return filtered(rounded(fits, noise, 1))


def rounded_up(exact: Fraction) -> float:
    """Return the nearest float64 that is no less; infinite beyond the largest."""
    try:
        found = float(exact)
    except OverflowError:
        return math.inf
    return found if found >= exact else math.nextafter(found, math.inf)
