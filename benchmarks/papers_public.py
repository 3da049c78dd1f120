"""Compare PE-SGD with other methods, each at a rate of its own.

    pip install scikit-learn
    python benchmarks/papers_public.py DATA --plan
    python benchmarks/papers_public.py DATA --points answers --model SMOLLM2

DATA holds the folder pubmed. `papers_training.py` says how it works. There are 400 private
abstracts, a fifth of them in a step, and ten steps: B/σ is 28 at ε = 1 and 66 at ε = 4. For 12
hospitals with a secure sum it is 325 at ε = 1; 240 units stand for their 960 in a step. With an
instruct model (`answers`) an abstract is its answer to a constant prompt, in training and scoring.
The N public texts are other abstracts, or texts that the model itself writes (`own`). G (N, P) are
their gradients, V (k, P) the first k = 50 directions of these. The rows follow. Those with `sft+`
begin at the base model after two passes of training on the texts:

    dp-lora       noise on the clipped gradient
    pe-sgd        noise on (GGᵀ + λI)⁻¹Gh at length 1; the step is along Gᵀz (713ywmTZHv)
    evolving      pe-sgd, and after each step one text in two is a variation of one that is kept
    inpro         noise on Gh at length 1; the step is along Gᵀz
    pdp-sgd       noise on the clipped gradient, which is then projected on V (2007.03813)
    gep           noise on Vh, clipped at C, and on the rest, clipped at 0.2 C (2102.12677)
    no-noise      the clipped sum itself: a ceiling
"""

from __future__ import annotations

import json
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
from papers_training import Array, Point, Step, Training, answer, cosine, main

from fedpriv.data.encode import Example
from fedpriv.methods.pe_sgd.projection import Projection, normalised
from fedpriv.plain_training.passes import passes
from fedpriv.plain_training.scores import score
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.worker import Worker
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import VectorOptimizer
from fedpriv.synthetic.chat import chat
from fedpriv.synthetic.config import GeneratorSection, SyntheticSection
from fedpriv.synthetic.evolution import Evolution
from fedpriv.synthetic.generator import Generator, new_records
from fedpriv.synthetic.instructed import InstructedGenerator
from fedpriv.synthetic.language_model import LanguageModelGenerator
from fedpriv.synthetic.records import Record as SetRecord
from fedpriv.synthetic.records import SyntheticSet

RIDGE, DIRECTIONS, REST = 1e-3, 50, 0.2
DESCRIBED = "an abstract of a medical research paper"
SFT_PASSES, SFT_RATES = 2, (3e-4, 1e-3, 3e-3)


@dataclass(frozen=True)
class SetPoint(Point):
    """A point with a set of texts that are other records, or the model's own."""

    own: bool = False

    @property
    def name(self) -> str:
        """Return the point's name, see `Point`."""
        return super().name + ("-own" if self.own else "")


BASE = SetPoint("answers", 8, 28.3, 10, 80, 0.1, records=400, texts=50)
SIZES = [
    BASE,
    replace(BASE, own=True),
    replace(BASE, ratio=66),
    replace(BASE, ratio=325, batch=240, records=4800, texts=200),
    replace(BASE, ratio=66, own=True),
    *(replace(BASE, texts=texts) for texts in (100, 200)),
    replace(BASE, texts=200, own=True),
]
POINTS = [replace(size, kind=kind) for kind in ("answers", "abstracts") for size in SIZES]


class Answers:
    """Make records of an instruct model's texts, as answers to the constant prompt."""

    def __init__(self, texts: Generator) -> None:
        self._texts = texts

    def random(self, count: int, seed: str) -> list[SetRecord]:
        """Make records as `Generator` does."""
        return [answer(made["text"]) for made in self._texts.random(count, seed)]

    def variations(self, records: Sequence[SetRecord], seed: str) -> list[SetRecord]:
        """Make variations as `Generator` does."""
        [*texts] = ({"text": json.loads(one["completion"])[0]["content"]} for one in records)
        return [answer(made["text"]) for made in self._texts.variations(texts, seed)]


class WithTexts(Training):
    """Compare the rows that the top of this file names."""

    ROWS: ClassVar[dict[str, Sequence[float]]] = {
        **dict.fromkeys(("dp-lora", "sft+dp-lora", "no-noise"), (3e-3, 1e-2, 3e-2)),
        **dict.fromkeys(
            ("pe-sgd", "sft+pe-sgd", "pdp-sgd", "inpro", "gep", "evolving", "sft+evolving"),
            (1e-3, 3e-3, 1e-2),
        ),
    }

    def __init__(self, point: SetPoint, study: Study, worker: Worker) -> None:
        super().__init__(point, study, worker)
        self.spec, self.generator = study.spec, self._generator()
        chosen = study.rows("public")[: point.texts]
        if point.own:
            chosen = new_records(point.texts, (), self._written)
        self.set = SyntheticSet(chosen)
        self._begun = self._read(self.set)

    def _written(self, count: int, attempt: int) -> list[SetRecord]:
        return self.generator.random(count, f"papers {attempt}")

    def _read(self, texts: SyntheticSet) -> list[Example]:
        found = texts.examples(self.spec, self.worker.base.tokenizer)
        return [example for example in found if example is not None]

    def _generator(self) -> Generator:
        """Return the generator that writes texts: the model, as it is at that time."""
        worker, longest = self.worker, self.worker.recipe.model.max_length

        @contextmanager
        def lend() -> Iterator[tuple[Any, Any]]:
            yield worker.model, worker.base.tokenizer

        if self.point.kind == "answers":
            ask = chat(lend, temperature=1.0, longest=longest)
            return Answers(InstructedGenerator(ask, DESCRIBED, ("text",), {}))
        return LanguageModelGenerator(lend, GeneratorSection(), ("text",), longest)

    @cached_property
    def warm(self) -> Array:
        """Return the values after training on the texts, at the best rate on choosing records."""
        found = []
        for rate in SFT_RATES:
            *_, values = passes(
                self.worker, self.worker.initial, self._begun, rate, epochs=SFT_PASSES,
                batch_size=4, falling=False, seed=0,
            )  # fmt: skip
            loss = score(self.worker, joined(self.choosing), values).eval_loss
            found.append((loss, rate, values))
        return min(found, key=lambda one: one[:2])[2]

    def stepper(self, row: str, rate: float, drawn: np.random.Generator) -> tuple[Array, Step]:
        """Make the steps of a row, see `Training`."""
        self.texts = self._begun
        begin = self.warm if row.startswith("sft+") else self.worker.initial
        optimizer = VectorOptimizer(OptimizerSection(lr=rate), public(begin))
        method = row.removeprefix("sft+")
        evolution = None
        if method == "evolving":
            section = SyntheticSection(size=len(self.set), generator=GeneratorSection())
            tokenizer, seed = self.worker.base.tokenizer, int(drawn.integers(2**31))
            begun = public(self.set)
            evolution = Evolution(section, begun, self.spec, tokenizer, self.generator, seed)

        def step_of(units: Records, values: Array, step: int) -> tuple[Array, tuple[float, float]]:
            along = self._gradient(method, units, values, drawn).astype(np.float32)
            found = math.nan
            if step in (1, self.point.steps):  # it costs as much as the step
                found = cosine(along, self.summed(units, values, self.point.clip_norm))
            values = optimizer.step(public(along)).value
            if evolution is not None and step < self.point.steps:
                self.worker.vector.write(values)
                evolution.advance(public(self._coefficients), self.point.batch, step)
                self.texts = self._read(evolution.current.value)
            return values, (found, found)

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
                first = self._first(self._set(values)).cpu().numpy()
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
            return clip_norm * (inside @ first.cpu().numpy() + REST * rest)
        projection = Projection(rows @ rows.T, RIDGE)

        def coefficients(means: torch.Tensor) -> torch.Tensor:
            products = means.double() @ rows.T
            found = products if method == "inpro" else projection.coefficients(products)
            return normalised(found, 1.0)

        mean = self.summed(units, values, 1.0, coefficients, len(rows)) / batch
        self._coefficients = noisy(mean, 1 / ratio)
        return self._coefficients @ rows.cpu().numpy()

    def _set(self, values: Array) -> torch.Tensor:
        """Return the gradients of the texts, (N, P) float64."""
        self.worker.vector.write(values)
        examples = self.texts
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
