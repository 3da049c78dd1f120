"""Compute what steps cost: the upper bound of ε that everything in fedpriv reports.

The bound is numerical (`composition`), in both directions of add/remove. The Rényi bound beside it
(`rdp`) is an upper bound too, so the smaller of the two is one. The Rényi bound takes over where
the numerical one gives up: δ below about 1e-50, or ε above 10⁶.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.composition import Composition
from fedpriv.privacy.accounting.privacy_loss import SubsampledGaussian
from fedpriv.privacy.accounting.rdp import ORDERS, epsilon_from_rdp, rdp

ACCOUNTANT = (
    "PRV, numerical composition of privacy loss random variables on dominating discrete pairs;"
    " upper bound, the larger of add and remove"
)
_MAX_EPSILON = 1e6
_MIN_NOISE, _MAX_NOISE = 1e-3, 1e100


@dataclass(frozen=True, order=True)
class Event:
    """`count` steps of the Poisson-subsampled Gaussian mechanism.

    Each step adds N(0, (noise_multiplier · sensitivity)²) to a sum over units that are in it
    independently with probability `sample_rate`.

    Args:
        sample_rate: in (0, 1]; 1 is the Gaussian mechanism on everyone.
        noise_multiplier: standard deviation over sensitivity, >= 0; 0 is a release without noise.
        count: number of steps, >= 0.

    Raises:
        AccountingError: for values outside these ranges.

    Privacy:
        Three public numbers; they pay for a release that is exactly as described.
    """

    sample_rate: float
    noise_multiplier: float
    count: int

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise AccountingError(f"Expected sample_rate={self.sample_rate!r} in (0, 1].")
        if not 0 <= self.noise_multiplier <= _MAX_NOISE:
            raise AccountingError(
                f"Expected noise_multiplier={self.noise_multiplier!r} >= 0 and <= {_MAX_NOISE:g}."
            )
        if not 0 <= self.count < math.inf or self.count != int(self.count):
            raise AccountingError(f"Expected count={self.count!r} to be an integer >= 0.")


class OnlineAccountant:
    """Compute ε after each step, on one grid for the plan. A query takes a millisecond, or a few.

    Args:
        plan: the steps that may be taken. Taking others, or fewer, keeps the result an upper
            bound.
        delta: δ in (0, 1).

    Raises:
        AccountingError: when δ is outside (0, 1).

    Source:
        See `fedpriv.privacy.accounting.composition`.

    Privacy:
        Reads no data. Holds for add/remove of one unit when the steps taken were fixed before
        the first release, sampled by secret Poisson sampling, and noised independently.
    """

    def __init__(self, plan: Sequence[Event], delta: float) -> None:
        if not 0 < delta < 1:
            raise AccountingError(f"Expected delta={delta!r} in (0, 1).")
        self._delta = float(delta)
        self._curve = np.zeros(len(ORDERS))
        steps = [(_pair(event), event.count) for event in plan if event.count]
        usable = all(pair.noise_multiplier >= _MIN_NOISE for pair, _ in steps)
        self._composition = Composition(steps, self._delta) if usable else None

    def add(self, event: Event) -> None:
        """Count the steps of `event` as taken."""
        if not event.count:
            return
        self._curve += rdp(event.sample_rate, event.noise_multiplier) * event.count
        if event.noise_multiplier < _MIN_NOISE:
            self._composition = None
        if self._composition is not None:
            self._composition.add(_pair(event), event.count)

    def epsilon(self) -> float:
        """Return an upper bound of ε at δ of the steps taken; see `epsilon_upper`."""
        bound = epsilon_from_rdp(self._curve, self._delta)[0]
        if bound == 0 or bound > _MAX_EPSILON or self._composition is None:
            return bound
        return min(bound, self._composition.epsilon())


def epsilon_upper(events: Sequence[Event], delta: float) -> float:
    """Return an upper bound of ε at δ for the composition of `events`.

    Args:
        events: what was or will be released, in any order. Without any, ε = 0.
        delta: δ in (0, 1).

    Returns:
        ε >= 0, never NaN: within 0.5% of the true value for up to 10⁵ steps and δ down to
        1e-13; looser beyond, as the grid is bounded. Infinite when an event has no noise, or
        so little that float64 would overflow (below 1e-120).

    Raises:
        AccountingError: when δ is outside (0, 1).

    Privacy:
        Reads no data; see `OnlineAccountant`.
    """
    if not 0 < delta < 1:
        raise AccountingError(f"Expected delta={delta!r} in (0, 1).")
    return _epsilon(_canonical(events), float(delta))


def epsilon_of_group(event: Event, delta: float, units: int) -> float:
    """Return an upper bound of ε for adding or removing `units` units at once, all of one person.

    Each is in a step on its own, and together they move a sum by up to `units` sensitivities.

    Raises:
        AccountingError: when δ is outside (0, 1) or `units` is below 1.

    Source:
        The pair of `SubsampledGaussian` with several units.
    """
    if units != int(units) or units < 1:
        raise AccountingError(f"Expected units={units!r} to be an integer >= 1.")
    if not 0 < delta < 1:
        raise AccountingError(f"Expected delta={delta!r} in (0, 1).")
    if not event.count:
        return 0.0
    if event.noise_multiplier < _MIN_NOISE:
        return math.inf
    step = (_pair(event, int(units)), event.count)
    composition = Composition([step], delta)
    composition.add(*step)
    return composition.epsilon()


def _pair(event: Event, units: int = 1) -> SubsampledGaussian:
    return SubsampledGaussian(float(event.sample_rate), float(event.noise_multiplier), units)


def _canonical(events: Sequence[Event]) -> tuple[Event, ...]:
    """Merge and sort equal steps; make one Gaussian of all steps without subsampling."""
    counts: dict[tuple[float, float], int] = {}
    for event in events:
        key = float(event.sample_rate), float(event.noise_multiplier)
        counts[key] = counts.get(key, 0) + int(event.count)
    merged = sorted(Event(q, sigma, count) for (q, sigma), count in counts.items() if count)
    full = [event for event in merged if event.sample_rate == 1]
    if not full or any(event.noise_multiplier < 1e-100 for event in full):
        return tuple(merged)
    precision = math.fsum(event.count / event.noise_multiplier**2 for event in full)
    rest = tuple(event for event in merged if event.sample_rate < 1)
    return (*rest, Event(1.0, 1 / math.sqrt(precision), 1))


@lru_cache(maxsize=4096)
def _epsilon(events: tuple[Event, ...], delta: float) -> float:
    """Return the lesser of two bounds: of all events, and of those that are not too rare to matter.

    The chance that the unit is in any rare step is at most Σ count · sample_rate. What these steps
    tell is within that in total variation, which is taken from δ.
    """
    rare, missed = set(), 0.0
    for event in sorted(events, key=lambda event: event.count * event.sample_rate):
        if missed + event.count * event.sample_rate > delta / 2:
            break
        rare.add(event)
        missed += event.count * event.sample_rate
    bound = _composed(events, delta)
    if rare:
        rest = tuple(event for event in events if event not in rare)
        bound = min(bound, _composed(rest, delta - missed))
    return bound


def _composed(events: tuple[Event, ...], delta: float) -> float:
    accountant = OnlineAccountant(events, delta)
    for event in events:
        accountant.add(event)
    return accountant.epsilon()
