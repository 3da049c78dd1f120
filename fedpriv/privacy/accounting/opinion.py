"""A second opinion on ε: prv-accountant, by the authors of the algorithm. It decides nothing.

It is asked with a grid that is as fine as a comparison needs, and only where that grid fits into
memory. For some plans it raises, as for (q, σ, T) = (.2, .5, 1000).

Source:
    Gopi, Lee and Wutschitz 2021, "Numerical Composition of Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import NamedTuple

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper

TOLERANCE = 0.01  # share of a bound by which two accountants may differ
_ERROR, _LEAST = 0.005, 1e-3  # how far off its ε may be: a share of ours, and at least so much
_POINTS = 4e6  # points of a grid, beyond which it is not asked


class Opinion(NamedTuple):
    """Hold prv-accountant's opinion of an ε: between `lower` and `upper`, about `estimate`."""

    lower: float
    estimate: float
    upper: float

    def holds(self, epsilon: float) -> bool:
        """Tell whether an ε is within the bounds, up to `TOLERANCE` of them."""
        return self.lower * (1 - TOLERANCE) <= epsilon <= self.upper * (1 + TOLERANCE)


def name() -> str:
    """Return the name and version of prv-accountant."""
    return f"prv-accountant {version('prv-accountant')}"


@lru_cache(maxsize=1024)
def opinion(events: tuple[Event, ...], delta: float) -> Opinion:
    """Return ε at δ of events by prv-accountant.

    Raises:
        AccountingError: it can't compute this one.
    """
    taken, ours = [event for event in events if event.count], epsilon_upper(events, delta)
    if not taken:
        return Opinion(0.0, 0.0, 0.0)
    error, counts = max(_ERROR * ours, _LEAST), [int(event.count) for event in taken]
    if not _points(taken, ours, error, delta) < _POINTS:
        raise AccountingError("prv-accountant can't compute this one: its grid would be too fine.")
    try:
        import prv_accountant as prv

        steps = [
            prv.PoissonSubsampledGaussianMechanism(event.sample_rate, event.noise_multiplier)
            if event.sample_rate < 1
            else prv.GaussianMechanism(event.noise_multiplier)
            for event in taken
        ]
        accountant = prv.PRVAccountant(steps, error, delta / 1000, counts)
        found = accountant.compute_epsilon(delta, counts)
    except Exception as cause:  # it says in many ways that it can't
        raise AccountingError(f"prv-accountant can't compute this one: {cause}") from None
    if not all(map(math.isfinite, found)):
        raise AccountingError("prv-accountant can't compute this one: it finds no finite bound.")
    return Opinion(*found)


def _points(taken: Sequence[Event], ours: float, error: float, delta: float) -> float:
    """Estimate how many points prv-accountant's grid has."""
    steps = sum(event.count for event in taken)
    least = min(event.noise_multiplier for event in taken)
    if least < 1e-3:
        return math.inf
    farthest = max(ours, (0.5 / least + 7) / least) + 3
    return 2 * farthest * math.sqrt(steps / 2 * math.log(12e3 / delta)) / error
