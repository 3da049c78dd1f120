from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism import clip as module
from fedpriv.privacy.mechanism.clip import MARGIN, ClippedSum, clip_and_sum, clip_to_grid
from fedpriv.privacy.mechanism.grid import Grid


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(0, 12),
    size=st.integers(1, 40),
    scale=st.floats(1e-6, 1e6),
    clip=st.floats(1e-3, 1e3),
    wide=st.booleans(),
)
def test_one_row_never_adds_more_than_the_bound(
    seed: int, rows: int, size: int, scale: float, clip: float, wide: bool
) -> None:
    dtype = torch.float64 if wide else torch.float32
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(rows + 1, size, generator=generator, dtype=dtype) * scale
    alone = clip_and_sum(g[-1:].clone(), clip).double()
    assert alone.norm() <= clip
    difference = clip_and_sum(g.clone(), clip).double() - clip_and_sum(g[:-1].clone(), clip)
    assert difference.norm() <= clip * (1 + 1e-5 * (rows + 1))


def test_short_rows_are_kept_and_long_ones_scaled() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0]], dtype=torch.float64)
    total = clip_and_sum(rows.clone(), 1.0)
    expected = rows[0] + torch.tensor([0.6, 0.8], dtype=torch.float64) * (1 - MARGIN)
    assert torch.allclose(total, expected, atol=1e-15)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_becomes_zero(bad: float) -> None:
    rows = torch.tensor([[0.1, 0.2], [bad, bad], [0.1, 0.1]])
    assert torch.allclose(clip_and_sum(rows, 1.0), torch.tensor([0.2, 0.3]).double())


def test_an_empty_sum_is_zero() -> None:
    assert torch.equal(clip_and_sum(torch.empty(0, 3), 1.0), torch.zeros(3).double())


def test_without_clipping_the_bound_is_broken() -> None:
    """The mutation: the property above is not true by itself."""
    rows = torch.full((1, 4), 10.0)
    assert rows.sum(0).norm() > 1.0 >= clip_and_sum(rows, 1.0).norm()


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan, 1e-30, 1e-50, 1e38])
def test_a_bound_that_is_none_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        clip_and_sum(torch.ones(1, 1), clip)


@pytest.mark.parametrize("size", [10**5, 10**7])
def test_long_rows_of_equal_values_are_within_the_bound(size: int) -> None:
    """A float32 norm of these is up to 1.7% too small."""
    clipped = clip_and_sum(torch.full((1, size), 0.1), 1.0)
    assert 0.9999 < clipped.norm() <= 1.0


@pytest.mark.parametrize("value", [1e-23, 1e-30, 3e18, 3e38])
def test_tiny_and_huge_values_are_clipped_too(value: float) -> None:
    """Their float32 squares are 0 or infinite; with the smallest bound it would show."""
    row = torch.full((1, 1000), value)
    assert clip_and_sum(row.clone(), 1e-6).norm() <= 1e-6
    assert clip_and_sum(row.clone(), 1.0).norm() == pytest.approx(
        min(1.0, value * 1000**0.5), rel=1e-4
    )


def test_double_rows_are_left_as_they_are() -> None:
    rows = torch.randn(3, 4, dtype=torch.float64)
    before = rows.clone()
    clip_and_sum(rows, 0.1)
    assert torch.equal(rows, before)


def test_a_clipped_row_longer_than_the_bound_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: a margin of the wrong sign."""
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0]])
    monkeypatch.setattr(module, "MARGIN", -1e-3)
    assert clip_and_sum(rows[:1].clone(), 1.0).norm() < 1.0
    with pytest.raises(AccountingError, match="clipped norms"):
        clip_and_sum(rows.clone(), 1.0)


def test_where_nobody_looks_a_sum_is_the_same_or_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what is not finite adds nothing, and a broken bound spoils the sum."""
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0], [math.nan, 1.0], [1.0, math.inf]])
    expected = clip_and_sum(rows.clone(), 1.0)
    monkeypatch.setattr(module, "LOOKED_AT", set())
    assert torch.equal(clip_and_sum(rows.clone(), 1.0), expected)
    monkeypatch.setattr(module, "MARGIN", -1e-3)
    spoiled = clip_and_sum(rows.clone(), 1.0)
    assert spoiled.isnan().all()


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 3000),
    scale=st.floats(-30, 30).map(math.exp),
    clip=st.floats(1e-6, 1e6),
    wide=st.booleans(),
)
def test_a_row_on_the_grid_is_within_the_bound_exactly(
    seed: int, size: int, scale: float, clip: float, wide: bool
) -> None:
    dtype = torch.float64 if wide else torch.float32
    row = torch.randn(1, size, generator=torch.Generator().manual_seed(seed), dtype=dtype) * scale
    grid = Grid(clip, size)
    whole = clip_to_grid(row.clone(), grid)
    assert whole.dtype == torch.int64
    assert sum(v * v for v in whole.tolist()) <= grid.limit
    moved = whole.double() * grid.step - clip_and_sum(row.clone(), clip)
    assert moved.abs().max() <= grid.step / 2


def steps_with(squares: int) -> torch.Tensor:
    """Few integers whose squares add up to this number, with room for one more."""
    parts = []
    while squares:
        parts.append(math.isqrt(squares))
        squares -= parts[-1] ** 2
    return torch.tensor([*parts, *[0] * (40 - len(parts))]).double()


@pytest.mark.parametrize("clip", [1.0, 3.7, 1e-6, 1e6])
def test_the_integer_norm_is_checked_to_the_last_unit(
    clip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(clip, 40)
    for excess in (0, 1):
        steps = steps_with(grid.limit + excess)
        monkeypatch.setattr(module, "clip_and_sum", lambda *_, s=steps: s * grid.step)
        if excess:
            with pytest.raises(AccountingError, match="rounded norm"):
                clip_to_grid(torch.zeros(1, 40), grid)
        else:
            assert torch.equal(clip_to_grid(torch.zeros(1, 40), grid), steps.long())


@pytest.mark.parametrize("value", [2.0**32, 2.0**62, 1e300, math.inf, math.nan])
def test_squares_that_overflow_do_not_pass(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 2³² add up to 0 in int64."""
    grid = Grid(1.0, 16)
    row = torch.full((16,), value, dtype=torch.float64) * grid.step
    monkeypatch.setattr(module, "clip_and_sum", lambda *_: row)
    with pytest.raises(AccountingError, match="rounded norm"):
        clip_to_grid(row, grid)


@pytest.mark.parametrize(("dtype", "grid"), [(torch.int64, None), (torch.float64, Grid(1.0, 3))])
def test_a_sum_is_of_integers_on_a_grid_and_there_alone(
    dtype: torch.dtype, grid: Grid | None
) -> None:
    with pytest.raises(ValueError, match="Expected a sum of type"):
        ClippedSum(torch.zeros(3, dtype=dtype), 1.0, grid)
