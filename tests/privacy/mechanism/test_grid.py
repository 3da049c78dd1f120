"""The grid: as coarse as the clip margin allows, and no coarser."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism.grid import MARGIN, MAX_DEVIATION, Grid, deviation, grid_of, sum_step
from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP

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


@given(clip=CLIPS, size=st.integers(1, 10**9))
def test_rounding_both_of_two_sums_uses_half_of_the_margin(clip: float, size: int) -> None:
    step = sum_step(clip, size)
    moved = size * Fraction(step) ** 2  # the most that both roundings move them apart, squared
    assert moved <= (Fraction(MARGIN) * Fraction(clip) / 2) ** 2 < 4 * moved
    assert math.frexp(step)[0] == 0.5


@given(clip=CLIPS, size=st.integers(1, 10**9), noise=st.floats(1e-3, 250.0))
def test_the_noise_is_never_less_than_what_was_paid_for(
    clip: float, size: int, noise: float
) -> None:
    step = sum_step(clip, size)
    paid = Fraction(noise) * Fraction(clip) / Fraction(step)
    assert paid <= Fraction(deviation(noise, clip, step)) <= paid * (1 + Fraction(2) ** -51)


def test_noise_that_cannot_be_drawn_is_refused() -> None:
    step = sum_step(1.0, 10**6)
    assert deviation(0.9 * MAX_DEVIATION * step, 1.0, step) <= MAX_DEVIATION
    with pytest.raises(AccountingError, match="of at most"):
        deviation(1.1 * MAX_DEVIATION * step, 1.0, step)


@pytest.mark.parametrize("size", [500_000_000, 10**12])
def test_what_int64_cannot_hold_is_refused(size: int) -> None:
    with pytest.raises(AccountingError, match="too fine for int64"):
        Grid(1.0, size)


def test_only_strict_numerics_have_one() -> None:
    assert grid_of("default", 1.0, 7) is None
    assert grid_of("strict", 1.0, 7) == Grid(1.0, 7) != Grid(2.0, 7)
