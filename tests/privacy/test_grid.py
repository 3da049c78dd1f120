"""The grid: as coarse as the clip margin allows, and no coarser."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.job import MAX_CLIP, MIN_CLIP
from fedpriv.errors import AccountingError
from fedpriv.privacy.grid import MARGIN, Grid, grid_of

CLIPS = st.floats(MIN_CLIP, MAX_CLIP)


@given(clip=CLIPS, size=st.integers(1, 110_000_000))
def test_it_is_the_coarsest_power_of_two_within_half_of_the_margin(clip: float, size: int) -> None:
    grid = Grid(clip, size)
    moved = size * (Fraction(grid.step) / 2) ** 2  # the most that rounding moves, squared
    assert moved <= (Fraction(MARGIN) * Fraction(clip) / 2) ** 2 < 4 * moved
    assert math.frexp(grid.step)[0] == 0.5


@given(clip=CLIPS, size=st.integers(1, 110_000_000))
def test_integers_within_the_limit_are_within_the_clip_norm(clip: float, size: int) -> None:
    grid = Grid(clip, size)
    step = Fraction(grid.step) ** 2
    assert grid.limit * step <= Fraction(clip) ** 2 < (grid.limit + 1) * step
    assert grid.limit <= 2**62


@given(clip=CLIPS, size=st.integers(1, 110_000_000), noise=st.floats(1e-3, 1e3))
def test_the_noise_is_never_less_than_what_was_paid_for(
    clip: float, size: int, noise: float
) -> None:
    grid = Grid(clip, size)
    paid = Fraction(noise) * Fraction(clip) / Fraction(grid.step)
    assert paid <= Fraction(grid.deviation(noise)) <= paid * (1 + Fraction(2) ** -51)


@pytest.mark.parametrize("size", [500_000_000, 10**12])
def test_what_int64_cannot_hold_is_refused(size: int) -> None:
    with pytest.raises(AccountingError, match="too fine for int64"):
        Grid(1.0, size)


def test_only_strict_numerics_have_one() -> None:
    assert grid_of("default", 1.0, 7) is None
    assert grid_of("strict", 1.0, 7) == Grid(1.0, 7) != Grid(2.0, 7)
