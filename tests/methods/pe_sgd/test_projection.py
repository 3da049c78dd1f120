"""Coefficients against least squares, their bound, and spans that are hardly any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.methods.pe_sgd.projection import Projection, normalised


def spanned(n: int, p: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """G (N, P) and one gradient (P,)."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(n, p, generator=generator, dtype=torch.float64)
    return g, torch.randn(p, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("ridge", [1e-9, 1e-3, 1.0, 50.0])
def test_they_are_the_ridge_regression(ridge: float) -> None:
    g, h = spanned(7, 40)
    strength = ridge * float((g @ g.T).diagonal().mean())
    padded = np.vstack([g.T.numpy(), np.sqrt(strength) * np.eye(7)])
    expected = np.linalg.lstsq(padded, np.concatenate([h.numpy(), np.zeros(7)]), rcond=None)[0]
    found = Projection(g @ g.T, ridge).coefficients((g @ h)[None])[0]
    assert np.abs(found.numpy() - expected).max() < 1e-10


def test_a_gradient_of_the_span_is_found_again() -> None:
    g, _ = spanned(9, 30)
    z = torch.linspace(-1, 2, 9, dtype=torch.float64)
    found = Projection(g @ g.T, 1e-12).coefficients((g @ (g.T @ z))[None])[0]
    assert (found - z).abs().max() < 1e-8


@given(scale=st.floats(-30, 30))
def test_the_ridge_means_the_same_at_any_scale(scale: float) -> None:
    g, h = spanned(5, 12)
    size = 10.0**scale
    plain = Projection(g @ g.T, 1e-2).coefficients(g @ h)
    scaled = Projection(size**2 * (g @ g.T), 1e-2).coefficients(size**2 * (g @ h))
    assert (plain - scaled).abs().max() < 1e-9


def test_twice_the_same_record_shares_its_coefficient() -> None:
    g, h = spanned(3, 20)
    double = torch.cat([g, g[:1]])
    z = Projection(double @ double.T, 1e-6).coefficients(double @ h)
    assert abs(float(z[0] - z[3])) < 1e-8
    assert torch.isfinite(z).all()


@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
def test_nothing_spans_nothing(value: float) -> None:
    gram = torch.full((3, 3), value)
    assert torch.equal(Projection(gram, 1e-3).coefficients(torch.ones(2, 3)), torch.zeros(2, 3))


@given(
    st.lists(st.lists(st.floats(width=64), min_size=4, max_size=4), min_size=1, max_size=6),
    st.floats(1e-6, 1e6),
)
def test_every_row_has_the_norm_or_is_zero(rows: list[list[float]], norm: float) -> None:
    found = normalised(torch.tensor(rows, dtype=torch.float64), norm)
    for row, before in zip(found, rows, strict=True):
        if np.isfinite(before).all() and any(before):
            assert abs(float(row.norm()) - norm) < 1e-9 * norm
        else:
            assert not row.any()


def test_a_direction_stays() -> None:
    found = normalised(torch.tensor([[3.0, -4.0], [1e-300, 0.0]], dtype=torch.float64), 2.0)
    assert torch.allclose(found, torch.tensor([[1.2, -1.6], [2.0, 0.0]], dtype=torch.float64))
