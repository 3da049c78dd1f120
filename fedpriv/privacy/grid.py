"""The integer grid of strict numerics: what a clipped vector is rounded to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from fedpriv.errors import AccountingError

Numerics = Literal["default", "strict"]

# Vectors are clipped to C(1−MARGIN): what is left covers the rounding of float64 norms and
# factors, and half of it the rounding to the grid.
MARGIN = 1e-5
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
        """γ."""
        largest = (Fraction(MARGIN) * Fraction(self.clip_norm)) ** 2 / max(self.size, 1)  # of γ²
        exponent = math.ceil(math.log2(largest) / 2) + 1
        while Fraction(4) ** exponent > largest:
            exponent -= 1
        return 2.0**exponent

    @cached_property
    def limit(self) -> int:
        """⌊(C/γ)²⌋, the most that the squares of a unit's integers may add up to."""
        return math.floor((Fraction(self.clip_norm) / Fraction(self.step)) ** 2)

    def deviation(self, noise_multiplier: float) -> float:
        """σC/γ, the standard deviation of the noise in steps, rounded up."""
        return math.nextafter(noise_multiplier * self.clip_norm / self.step, math.inf)


def grid_of(numerics: Numerics, clip_norm: float, size: int) -> Grid | None:
    """The grid of a plan's sums of `size` coordinates; None in default numerics."""
    return Grid(clip_norm, size) if numerics == "strict" else None
