"""The grids that releases are made on: what sums, or in strict numerics vectors, are rounded to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fedpriv.errors import AccountingError
from fedpriv.privacy.usual import Numerics

# Vectors are clipped to C(1−MARGIN): what is left covers the rounding of float64 norms, factors
# and sums, and half of it the rounding to the grid.
MARGIN = 1e-5
# The deviation of noise, in steps. Noise and float64 sums of steps are then exact, below 2⁵³, and
# few numbers are so near a half that `rounded_gaussian` has to look closer.
MAX_DEVIATION = 2.0**42
# So that int64 holds the squares of a vector that is a little too long; a coordinate is then at
# most 2³¹ steps, and int64 holds sums of 2³¹ units too.
_MAX_SQUARES = 2**62


@dataclass(frozen=True)
class Grid:
    """Multiples of a power of two γ, so fine that rounding to it stays inside the clip margin.

    γ is the largest power of two with √P·γ/2 ≤ MARGIN·C/2. Rounding moves no coordinate by more
    than γ/2, so a vector of norm C(1−MARGIN) is still shorter than C after it.

    Args:
        clip_norm: C.
        size: P, the number of coordinates.

    Raises:
        AccountingError: more coordinates than int64 can square and add: up to 1.1·10⁸ always fit.

    Privacy:
        Public: a function of the plan's clip norm and the number of trained parameters.
    """

    clip_norm: float
    size: int

    def __post_init__(self) -> None:
        if self.limit > _MAX_SQUARES:
            raise AccountingError(
                f"Expected size={self.size} <= 1.1e8: the grid would be too fine for int64."
                " Train fewer parameters, or use the default numerics."
            )

    @cached_property
    def step(self) -> float:
        """γ, the step of the grid."""
        return 2 * sum_step(self.clip_norm, self.size)

    @cached_property
    def limit(self) -> int:
        """⌊(C/γ)²⌋, the most that the squares of a unit's integers may add up to."""
        return math.floor((Fraction(self.clip_norm) / Fraction(self.step)) ** 2)


def sum_step(clip_norm: float, size: int) -> float:
    """Return γ of the grid to which default numerics round a sum of `size` float64 coordinates.

    It is the largest power of two with √P·γ ≤ MARGIN·C/2. Rounding moves a coordinate of either of
    two sums by at most γ/2, so two sums that are C(1−MARGIN) apart are less than C(1−MARGIN/2)
    apart after it. The rest, 5·10⁻⁶·C, is for the float64 additions before: n units in the sample
    err by at most n²·2⁻⁵³·C, which is less for n up to 200,000. A ledger holds no plan that draws
    more than half as many on average (`MAX_DRAWN`).

    Privacy:
        Public, as `Grid` is.
    """
    largest = (Fraction(MARGIN) * Fraction(clip_norm)) ** 2 / (4 * max(size, 1))  # at least γ²
    exponent = math.ceil(math.log2(largest) / 2) + 1
    while Fraction(4) ** exponent > largest:
        exponent -= 1
    return 2.0**exponent


def deviation(noise_multiplier: float, clip_norm: float, step: float) -> float:
    """Return σC/γ, the standard deviation of the noise in steps, rounded up.

    Raises:
        AccountingError: it is more than MAX_DEVIATION.
    """
    found = math.nextafter(noise_multiplier * clip_norm / step, math.inf)
    if found > MAX_DEVIATION:
        raise AccountingError(
            f"Expected noise_multiplier={noise_multiplier:g} of at most"
            f" {MAX_DEVIATION * step / clip_norm:.3g} for so many values. Propose a larger epsilon."
        )
    return found


def step_of(numerics: Numerics, clip_norm: float, size: int) -> float:
    """Return γ: a plan's sums of `size` coordinates are whole multiples of it in any numerics.

    Raises:
        AccountingError: as `Grid`.
    """
    grid = grid_of(numerics, clip_norm, size)
    return sum_step(clip_norm, size) if grid is None else grid.step


def grid_of(numerics: Numerics, clip_norm: float, size: int) -> Grid | None:
    """Return the grid of a plan's sums of `size` coordinates; None in default numerics."""
    return Grid(clip_norm, size) if numerics == "strict" else None
