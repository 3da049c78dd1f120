"""The closed form against the printed equations, and against what theory says of known signals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpriv.errors import RawValueError
from fedpriv.privacy.mechanism.privatised import public, received
from fedpriv.public_update.config import DenoiseSection
from fedpriv.public_update.denoise import Denoiser
from fedpriv.public_update.edge import edge_margin, noise_edge
from tests.arithmetic import Rounded
from tests.example_counts import examples

Array = np.ndarray[Any, np.dtype[np.float64]]


def printed(x: Array, deviation: float, kappa: float, *, kept: bool) -> tuple[Array, bool]:
    """Equations (8) to (10) of arXiv:2510.01137 by a plain decomposition, one matrix at a time.

    κ decides by the first singular value alone. Of each above the edge: the strength of a signal
    whose noisy singular value is y, the two cosines between its true and noisy singular vectors,
    and η as the product of the three.
    """
    m, n = x.shape
    u, y, v = np.linalg.svd(x / deviation, full_matrices=False)
    edge = math.sqrt(m) + math.sqrt(n)
    if y[0] <= kappa * edge:
        return x, False
    eta = np.zeros_like(y)
    for index in np.flatnonzero(y > edge):
        middle = y[index] ** 2 - m - n
        strength = (middle + math.sqrt(middle**2 - 4 * m * n)) / 2  # λ²
        left, right = cosines(strength, m, n)
        eta[index] = math.sqrt(strength) * left * right
    found = (u * eta) @ v * deviation
    return found * (np.linalg.norm(x) / np.linalg.norm(found) if kept else 1.0), True


def cosines(strength: float, m: int, n: int) -> tuple[float, float]:
    """Equations (4) and (5), of the m- and the n-vector; λ² in units of the noise's variance."""
    bulk = strength**2 - m * n
    left = math.sqrt(bulk / (strength * (strength + m)))
    right = math.sqrt(bulk / (strength * (strength + n)))
    return left, right


def planted(shape: tuple[int, int], strengths: list[float], seed: int) -> tuple[Array, Array]:
    """A signal of given singular values with unit noise on it, and the signal."""
    generator = np.random.default_rng(seed)
    left, right = (np.linalg.qr(generator.standard_normal((s, len(strengths))))[0] for s in shape)
    signal = (left * strengths) @ right.T
    return signal + generator.standard_normal(shape), signal


def denoise(x: Array, deviation: float = 1.0, **options: Any) -> tuple[Array, int]:
    made = Denoiser([x.shape], DenoiseSection(where="server", **options))
    found = made(received(x.astype(np.float32).ravel()), deviation).value
    return found.reshape(x.shape).astype(np.float64), made.found.on


@settings(deadline=None, max_examples=examples(60))
@given(
    short=st.integers(1, 12),
    more=st.integers(0, 60),
    tall=st.booleans(),
    strengths=st.lists(st.floats(0, 60), max_size=4),
    size=st.sampled_from([1e-6, 1.0, 1e4]),
    kappa=st.sampled_from([1.0, 1.02, 1.3]),
    norm=st.sampled_from(["kept", "unscaled"]),
    seed=st.integers(0, 2**31),
)
def test_it_is_the_printed_equations(
    short: int,
    more: int,
    tall: bool,
    strengths: list[float],
    size: float,
    kappa: float,
    norm: str,
    seed: int,
) -> None:
    x, _ = planted((short, short + more), strengths[:short], seed)
    x = (x.T if tall else x) * size
    y = np.linalg.svd(x / size, compute_uv=False) / noise_edge(*x.shape)
    assume((np.abs(y - 1) > 1e-4).all())  # a float32 may fall on either side
    assume(abs(y[0] - kappa) > 1e-4)
    wanted, on = printed(x, size, kappa, kept=norm == "kept")
    options: dict[str, Any] = {"deviation": size, "kappa": kappa, "norm": norm}
    assert denoise(x, **options)[1] == on
    assert Rounded(lambda: denoise(x, **options)[0]).off_by(wanted) <= 1


def test_matrices_of_a_vector_are_denoised_each_by_itself() -> None:
    """Of equal and other shapes, lying and standing, beside layers that are no matrices."""
    shapes = [(4, 30), (30, 4), (7,), (4, 30), (2, 3, 5), (30, 30), (4, 30)]
    generator = np.random.default_rng(0)
    layers = [
        planted((s[0], s[1]), [40.0], i)[0] if len(s) == 2 else generator.standard_normal(s)
        for i, s in enumerate(shapes)
    ]
    vector = np.concatenate([layer.ravel() for layer in layers]).astype(np.float32)
    made = Denoiser(shapes, DenoiseSection(where="server"))
    found = made(received(vector), 1.0).value
    assert (made.found.on, made.matrices, made.size) == (5, 5, vector.size)
    start = 0
    for shape, layer in zip(shapes, layers, strict=True):
        part = found[start : start + layer.size].reshape(shape)
        start += layer.size
        if len(shape) == 2:
            assert Rounded(lambda layer=layer: denoise(layer)[0]).off_by(part) <= 1
        else:
            assert np.array_equal(part, layer.astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "over"),
    [
        *[(shape, over) for shape in [(16, 768), (8, 1024), (64, 64)] for over in (2.0, 4.0)],
        ((200, 300), 1.3),  # nearer to the edge, the theory is of large matrices only
    ],
)
def test_the_spiked_model_holds_on_planted_signals(shape: tuple[int, int], over: float) -> None:
    """Cosines of (4) and (5), and with them the η that is made of them, within 0.02."""
    m, n = shape
    strength = over * (m * n) ** 0.25
    seen = []
    for seed in range(40):
        x, signal = planted(shape, [strength], seed)
        u, _, v = np.linalg.svd(x, full_matrices=False)
        a, _, b = np.linalg.svd(signal, full_matrices=False)
        seen.append((abs(u[:, 0] @ a[:, 0]), abs(v[0] @ b[0])))
    assert np.mean(seen, axis=0) == pytest.approx(cosines(strength**2, m, n), abs=0.02)


def test_a_strong_signal_of_low_rank_is_found_again() -> None:
    closer = []
    for seed in range(10):
        x, signal = planted((16, 768), [60.0, 45.0], seed)
        before, after = cosine(x, signal), cosine(denoise(x)[0], signal)
        left = denoise(x, norm="unscaled")[0]
        closer.append((after - before, np.linalg.norm(x - signal) - np.linalg.norm(left - signal)))
    assert (np.array(closer) > [0.2, 50]).all()


def test_a_flat_spectrum_is_hurt_as_published() -> None:
    """A gradient that fills all of its few rows: what is above the edge is not all there is."""
    changes = []
    for seed in range(20):
        x, signal = planted((4, 768), [8.5] * 4, seed)
        found, on = denoise(x)
        if on:
            changes.append(cosine(found, signal) - cosine(x, signal))
    assert len(changes) > 3 and np.mean(changes) < -0.05


def cosine(a: Array, b: Array) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


def test_without_noise_nothing_is_changed() -> None:
    x, _ = planted((4, 30), [40.0], 0)
    assert np.array_equal(denoise(x, 0.0)[0], x.astype(np.float32))


@pytest.mark.parametrize("norm", ["kept", "unscaled"])
def test_zero_stays_zero(norm: str) -> None:
    found, on = denoise(np.zeros((4, 30)), norm=norm)
    assert on == 0 and not found.any()


def test_pure_noise_is_left_as_it_is_to_the_bit() -> None:
    x = np.random.default_rng(0).standard_normal((16, 384))
    found, on = denoise(x)
    assert on == 0 and np.array_equal(found, x.astype(np.float32))


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (1, 1)])
def test_a_row_or_column_is_a_matrix_of_rank_one(shape: tuple[int, int]) -> None:
    """With lengths kept it is itself; else its length is what the equations say."""
    x = np.full(shape, 30.0)
    found, on = denoise(x)
    assert on == 1 and np.allclose(found, x, rtol=1e-6)
    wanted, _ = printed(x, 1.0, 1.02, kept=False)
    assert np.allclose(denoise(x, norm="unscaled")[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    x = np.ones((4, 30))
    x[1, 2] = bad
    with pytest.raises(ValueError, match="finite"):
        denoise(x)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_a_deviation_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="deviation"):
        denoise(np.ones((4, 30)), bad)


def test_another_size_is_refused() -> None:
    made = Denoiser([(4, 30)], DenoiseSection(where="server"))
    with pytest.raises(ValueError, match="120"):
        made(public(np.zeros(100, dtype=np.float32)), 1.0)


def test_a_raw_gradient_is_refused() -> None:
    made = Denoiser([(4, 30)], DenoiseSection(where="server"))
    with pytest.raises(RawValueError):
        made(np.zeros(120, dtype=np.float32), 1.0)  # type: ignore[arg-type]


def test_it_says_whose_word_it_rests_on_and_changes_nothing_in_place() -> None:
    x = planted((4, 30), [40.0], 0)[0].astype(np.float32).ravel()
    given_ = received(x)
    before = x.copy()
    found = Denoiser([(4, 30)], DenoiseSection(where="server"))(given_, 1.0)
    assert found.trust_model is given_.trust_model and np.array_equal(x, before)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 200),
        (4, 256),
        pytest.param((16, 384), marks=pytest.mark.nightly),
        pytest.param((40, 60), marks=pytest.mark.nightly),
    ],
)
def test_noise_is_above_the_margin_of_its_shape_once_in_a_hundred(shape: tuple[int, int]) -> None:
    """By decompositions of matrices, where the margin comes from bidiagonal ones."""
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(8000, *shape, generator=generator)
    edge = edge_margin(*shape) * noise_edge(*shape)
    share = float((torch.linalg.matrix_norm(draws, 2) > edge).float().mean())
    assert 0.006 < share < 0.014
    assert edge_margin(*shape) == edge_margin(*reversed(shape))


def test_what_is_found_by_chance_is_foretold() -> None:
    shapes = [(4, 256), (256, 4), (16, 384)]
    made = Denoiser(shapes, DenoiseSection(where="server"))
    generator = np.random.default_rng(0)
    drawn = generator.standard_normal((600, made.size)).astype(np.float32)
    seen = []
    for noise in drawn:
        made(received(noise), 1.0)
        seen.append(made.found.on)
    assert np.mean(seen) == pytest.approx(made.by_chance, abs=4 * np.std(seen) / math.sqrt(600))
    assert 0.02 < made.by_chance < 0.2


def test_the_margin_of_a_shape_is_used_where_kappa_is_auto() -> None:
    shape = (16, 4096)
    margin = edge_margin(*shape)
    assert 1 < margin < 1.02
    generator = np.random.default_rng(0)
    left, right = (np.linalg.qr(generator.standard_normal((s, 1)))[0] for s in shape)
    x = (left * (margin + 1.02) / 2 * noise_edge(*shape)) @ right.T
    assert (denoise(x)[1], denoise(x, kappa="auto")[1]) == (0, 1)
