"""Take noise of a known size out of released gradients, a matrix at a time.

The noise of a private step is white, so a gradient matrix X = S + σW has singular values that
random matrix theory foretells: those of the noise end at σ(√m + √n), and one y above that edge
belongs to a signal whose part in it is known. Each is shrunk to what it tells of the signal,

    η = √D / y,  D = (y² − σ²(m + n))² − 4σ⁴mn,

all others are left out, and X̂ is given the length of X. With w = y² and XXᵀ = Q diag(w) Qᵀ that is
X̂ = Q diag(√D / w) QᵀX, which needs no singular value decomposition. A matrix whose first singular
value is not above κ times the edge is left as it is.

Source:
    Dadsetan & Rudzicz, "Re-examining low rank adaptation for private LLM fine-tuning"
    (arXiv:2510.01137), equations (8)-(10); Gavish & Donoho, "Optimal shrinkage of singular values",
    2017, equation (7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.public_update.config import DenoiseSection
from fedpriv.public_update.edge import chance_above, edge_margin, noise_edge


@dataclass(frozen=True)
class Found:
    """Matrices of a gradient in which a signal was found.

    Attributes:
        on: the number whose first singular value was above κ times the edge.
        matrices: the number of all.
        by_chance: the average number if there is nothing but noise.
    """

    on: int
    matrices: int
    by_chance: float


class Denoiser:
    """Denoise a flat gradient whose layers are known.

    Layers with two dimensions are matrices, and any other is left as it is, a bias for one.

    Args:
        shapes: the shapes of the layers, in the order of the vector.

    Attributes:
        size: P.
        matrices: the number of matrices.
        by_chance: the average number denoised if there is nothing but noise.
        found: what was found in the last gradient; None before there was one.

    Privacy:
        Post-processing of a released value: costs nothing. σ must be that of its noise, which is
        public; nothing here looks at a record.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], settings: DenoiseSection) -> None:
        self._settings = settings
        self._groups: dict[tuple[int, int], list[_Matrix]] = {}
        self.size = self.matrices = 0
        self.found: Found | None = None
        for shape in shapes:
            if len(shape) == 2 and all(shape):
                rows, columns = shape
                matrix = _Matrix(slice(self.size, self.size + rows * columns), rows, columns)
                self._groups.setdefault((min(shape), max(shape)), []).append(matrix)
                self.matrices += 1
            self.size += prod(shape)
        self.by_chance = sum(
            len(group) * chance_above(m, n, _kappa(m, n, settings))
            for (m, n), group in self._groups.items()
        )

    def __call__(self, gradient: Privatised[Vector], deviation: float) -> Privatised[Vector]:
        """Return the gradient (P,) without some of its noise.

        Args:
            gradient: (P,) float32.
            deviation: σ of the noise in every coordinate; if it is 0, nothing is changed.

        Raises:
            RawValueError: the gradient is raw.
            ValueError: it has another size or a value that is not finite, or σ is no deviation.
        """
        return post_process(lambda vector: self._denoise(vector, deviation), gradient)

    def _denoise(self, vector: Vector, deviation: float) -> Vector:
        if vector.shape != (self.size,) or not np.isfinite(vector).all():
            raise ValueError(f"Expected {self.size} finite values, got {vector.shape}.")
        if not 0 <= deviation < float("inf"):
            raise ValueError(f"Expected 0 <= deviation={deviation} < ∞.")
        result = torch.from_numpy(vector.copy())
        on = 0
        for group in self._groups.values() if deviation else ():
            batch = torch.stack([matrix.lying(result) for matrix in group])
            denoised, above = denoise_matrices(batch, deviation, self._settings)
            for matrix, part in zip(group, denoised, strict=True):
                matrix.lying(result).copy_(part)
            on += above
        self.found = Found(on, self.matrices, self.by_chance)
        return result.numpy()


@dataclass(frozen=True)
class _Matrix:
    """The place of a layer in the vector."""

    part: slice
    rows: int
    columns: int

    def lying(self, vector: Tensor) -> Tensor:
        """Return a view of the layer with no more rows than columns."""
        view = vector[self.part].view(self.rows, self.columns)
        return view if self.rows <= self.columns else view.T


def denoise_matrices(
    batch: Tensor, deviation: float, settings: DenoiseSection
) -> tuple[Tensor, int]:
    """Denoise k matrices of one shape, (k, m, n) float32 with m ≤ n.

    Args:
        deviation: σ > 0.

    Returns:
        The matrices, and how many of them were changed.
    """
    _, m, n = batch.shape
    variance, edge = deviation**2, deviation * noise_edge(m, n)
    # Sums of squares in float32, of like size; their eigenvalues in float64, as they are small.
    squares, vectors = torch.linalg.eigh(torch.bmm(batch, batch.transpose(1, 2)).double())
    found = squares.amax(1) > (_kappa(m, n, settings) * edge) ** 2
    squares, vectors = squares[found], vectors[found]
    spread = (squares - variance * (m + n)).square() - 4 * variance**2 * m * n
    shrink = (spread.clamp_min(0).sqrt() / squares).where(squares > edge**2, 0.0)  # η / y
    if settings.norm == "kept":
        lengths = squares.clamp_min(0)
        left = (shrink.square() * lengths).sum(1)
        shrink *= (lengths.sum(1) / left).sqrt().unsqueeze(1)
    factors = (vectors * shrink.unsqueeze(1)) @ vectors.transpose(1, 2)
    result = batch.clone()
    result[found] = torch.bmm(factors.to(batch.dtype), batch[found])
    return result, int(found.sum())


def _kappa(m: int, n: int, settings: DenoiseSection) -> float:
    return edge_margin(m, n) if settings.kappa == "auto" else settings.kappa
