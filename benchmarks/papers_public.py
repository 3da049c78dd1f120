"""PE-SGD and what it is compared with, each at a rate of its own.

    pip install scikit-learn
    python benchmarks/papers_public.py DATA --plan
    python benchmarks/papers_public.py DATA --points abstracts-r8 --model SMOLLM2

DATA holds the folder pubmed; how it works is said in `papers_training.py`. 400 private abstracts, a
fifth of them in a step, ten steps: B/σ is 28 at ε = 1 and 66 at ε = 4. Of 12 hospitals with a
secure sum it is 325 at ε = 1; 240 units stand for their 960 in a step. N public texts are other
abstracts, or what the model itself writes (`own`). Their set stays as it is; an evolving one is a
row of `benchmarks/pe_sgd.py`. G (N, P) are their gradients, V (k, P) the first k = 50 directions of
these. Rows, of which those with `sft+` begin at the base model trained on the texts for two passes:

    dp-lora       noise on the clipped gradient
    pe-sgd        noise on (GGᵀ + λI)⁻¹Gh at length 1; the step is along Gᵀz (713ywmTZHv)
    inpro         noise on Gh at length 1; the step is along Gᵀz
    pdp-sgd       noise on the clipped gradient, which is then projected on V (2007.03813)
    gep           noise on Vh, clipped at C, and on the rest, clipped at 0.2 C (2102.12677)
    no-noise      the clipped sum itself: a ceiling
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from joining_runs import Records, Study, joined
from papers_training import Array, Point, Step, Training, cosine, main

from fedpriv.data.encode import encode_text
from fedpriv.methods.pe_sgd.projection import Projection, normalised
from fedpriv.plain_training.passes import passes
from fedpriv.plain_training.scores import score
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.worker import Worker
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.optimizer import VectorOptimizer
from fedpriv.synthetic.config import GeneratorSection
from fedpriv.synthetic.language_model import LanguageModelGenerator

RIDGE, DIRECTIONS, REST = 1e-3, 50, 0.2
SFT_PASSES, SFT_RATES = 2, (3e-4, 1e-3, 3e-3)


@dataclass(frozen=True)
class SetPoint(Point):
    """With a set of texts that are other records, or the model's own."""

    own: bool = False

    @property
    def name(self) -> str:
        """See `Point`."""
        return super().name + ("-own" if self.own else "")


BASE = SetPoint("abstracts", 8, 28.3, 10, 80, 0.1, records=400, texts=50)
POINTS = [
    BASE,
    replace(BASE, own=True),
    replace(BASE, ratio=66),
    *(replace(BASE, texts=texts) for texts in (100, 200)),
    replace(BASE, ratio=325, batch=240, records=4800, texts=200),
    replace(BASE, ratio=66, own=True),
]


class WithTexts(Training):
    """See the top of this file."""

    ROWS: ClassVar[dict[str, Sequence[float]]] = {
        **dict.fromkeys(("dp-lora", "sft+dp-lora", "no-noise"), (3e-3, 1e-2, 3e-2)),
        **dict.fromkeys(("pe-sgd", "sft+pe-sgd", "pdp-sgd", "inpro", "gep"), (1e-3, 3e-3, 1e-2)),
    }

    def __init__(self, point: SetPoint, study: Study, worker: Worker) -> None:
        super().__init__(point, study, worker)
        if point.own:
            self.public = self._written(point.texts)
        self.texts = self.public[: point.texts]

    def _written(self, count: int) -> Records:
        """Let the model write texts as it is before any training."""
        worker, longest = self.worker, self.worker.recipe.model.max_length

        @contextmanager
        def lend() -> Iterator[tuple[Any, Any]]:
            worker.vector.write(worker.initial)
            yield worker.model, worker.base.tokenizer

        made = LanguageModelGenerator(lend, GeneratorSection(), ("text",), longest)
        texts = [record["text"] for record in made.random(count, "papers")]
        return [encode_text(text, worker.base.tokenizer, longest, 1) for text in texts]

    @cached_property
    def warm(self) -> Array:
        """The values after training on the texts, at the best rate on records to choose by."""
        found = []
        for rate in SFT_RATES:
            *_, values = passes(
                self.worker, self.worker.initial, joined(self.texts), rate, epochs=SFT_PASSES,
                batch_size=4, falling=False, seed=0,
            )  # fmt: skip
            loss = score(self.worker, joined(self.choosing), values).eval_loss
            found.append((loss, rate, values))
        return min(found, key=lambda one: one[:2])[2]

    def stepper(self, row: str, rate: float, drawn: np.random.Generator) -> tuple[Array, Step]:
        """See `Training`."""
        begin = self.warm if row.startswith("sft+") else self.worker.initial
        optimizer = VectorOptimizer(OptimizerSection(lr=rate), public(begin))
        method = row.removeprefix("sft+")

        def step_of(units: Records, values: Array, step: int) -> tuple[Array, tuple[float, float]]:
            along = self._gradient(method, units, values, drawn).astype(np.float32)
            found = math.nan
            if step in (1, self.point.steps):  # it costs as much as the step
                found = cosine(along, self.summed(units, values, self.point.clip_norm))
            return optimizer.step(public(along)).value, (found, found)

        return begin, step_of

    def _gradient(
        self, method: str, units: Records, values: Array, drawn: np.random.Generator
    ) -> Any:
        """Return what a method makes of the units' gradients and noise, (P,) float64."""
        batch, clip_norm, ratio = self.point.batch, self.point.clip_norm, self.point.ratio

        def noisy(mean: Any, deviation: float) -> Any:
            return mean + deviation * drawn.standard_normal(mean.size)

        if method in ("dp-lora", "pdp-sgd", "no-noise"):
            clean = self.summed(units, values, clip_norm) / batch
            released = clean if method == "no-noise" else noisy(clean, self.noise)
            if method == "pdp-sgd":
                first = self._first(self._set(values)).numpy()
                released = first.T @ (first @ released)
            return released
        rows = self._set(values)
        if method == "gep":
            first = self._first(rows).float()

            def parts(means: torch.Tensor) -> torch.Tensor:
                inside = means @ first.T
                rest = means - inside @ first
                cut = [
                    part * (norm / part.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_max(1)
                    for part, norm in ((inside, clip_norm), (rest, REST * clip_norm))
                ]
                return torch.cat([cut[0] / clip_norm, cut[1] / (REST * clip_norm)], dim=1)

            size = len(first) + rows.shape[1]
            both = noisy(self.summed(units, values, 2**0.5, parts, size) / batch, 2**0.5 / ratio)
            inside, rest = both[: len(first)], both[len(first) :]
            return clip_norm * (inside @ first.numpy() + REST * rest)
        projection = Projection(rows @ rows.T, RIDGE)

        def coefficients(means: torch.Tensor) -> torch.Tensor:
            products = means.double() @ rows.T
            found = projection.coefficients(products) if method == "pe-sgd" else products
            return normalised(found, 1.0)

        mean = self.summed(units, values, 1.0, coefficients, len(rows)) / batch
        return noisy(mean, 1 / ratio) @ rows.numpy()

    def _set(self, values: Array) -> torch.Tensor:
        """Return the gradients of the texts, (N, P) float64."""
        self.worker.vector.write(values)
        examples = joined(self.texts)
        length = max(len(example.input_ids) for example in examples)
        found = [
            self.worker.record_gradients(self.worker.batch(examples[i : i + 16], length)).double()
            for i in range(0, len(examples), 16)
        ]
        return torch.cat(found)

    @staticmethod
    def _first(rows: torch.Tensor) -> torch.Tensor:
        """Return the first directions of some gradients, (k, P) float64, orthonormal."""
        lengths, vectors = torch.linalg.eigh(rows @ rows.T)
        kept = lengths.flip(0)[: min(DIRECTIONS, len(rows))] > 1e-12 * lengths[-1]
        count = int(kept.sum())
        left, squares = vectors.flip(1)[:, :count], lengths.flip(0)[:count]
        return (left / squares.sqrt()).T @ rows


if __name__ == "__main__":
    sys.exit(main(__doc__, WithTexts, POINTS))
