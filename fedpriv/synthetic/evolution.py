"""The synthetic set of a job at its server: spans updates, and changes with what it learns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedpriv.config.job import OptimizerSection
from fedpriv.config.synthetic import SyntheticSection
from fedpriv.methods.pe_sgd.site import Span, lifted, mean_gradient
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.synthetic.generator import Generator, new_records
from fedpriv.synthetic.records import Record, SyntheticSet
from fedpriv.synthetic.selection import Selection, select
from fedpriv.training.optimizer import VectorOptimizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from fedpriv.data.spec import DataSpec
    from fedpriv.models.vector import Vector
    from fedpriv.training.worker import ModelRecipe, WorkerPool


@dataclass(frozen=True)
class Evolved:
    """What became of the set in a round.

    Attributes:
        digest: of the set that the next round has.
        made: records that are new in it.
        entropy: of the selection, see `Selection`.
        seconds: that making them took.
    """

    digest: str
    made: int
    entropy: float
    seconds: float


class Evolution:
    """Holds the set, lifts releases by it, and lets it evolve.

    A job of another method may have one, to start warm.

    Args:
        first: the set of the first round, public.
        spec, tokenizer: how a record is read.
        pool, recipe: lend the model.
        generator: makes new records; None for a set that stays as it is.
        seed: of the selections, public.

    Attributes:
        current: the set that the next request is about.
        previous: the one before.

    Privacy:
        Post-processing of released coefficients, the released model and public records.
    """

    def __init__(
        self,
        settings: SyntheticSection,
        first: Privatised[SyntheticSet],
        spec: DataSpec,
        tokenizer: PreTrainedTokenizerBase,
        pool: WorkerPool,
        recipe: ModelRecipe,
        generator: Generator | None,
        seed: int,
    ) -> None:
        self.settings = settings
        self._spec, self._tokenizer = spec, tokenizer
        self._pool, self._recipe = pool, recipe
        self._generator, self._seed = generator, seed
        self.previous: Privatised[SyntheticSet] | None = None
        self._take(first)

    def _take(self, found: Privatised[SyntheticSet]) -> None:
        examples = found.value.examples(self._spec, self._tokenizer)
        self.span = Span(self.settings.projection, examples)
        self.current = found

    def warm_start(self, parameters: Privatised[Vector]) -> Privatised[Vector]:
        """The parameters after some steps on the whole set, by its mean gradient.

        Privacy:
            Of public records alone; costs nothing.
        """
        settings = OptimizerSection(lr=self.settings.warm_start_lr)
        optimizer = VectorOptimizer(settings, parameters)
        for _ in range(self.settings.warm_start):
            optimizer.step(self.mean_gradient(optimizer.vector))
        return optimizer.vector

    def mean_gradient(self, parameters: Privatised[Vector]) -> Privatised[Vector]:
        """Of the set's records, (P,)."""
        with self._pool.borrow(self._recipe) as worker:
            return post_process(partial(mean_gradient, self.span, worker), parameters)

    def lift(
        self, mean: Privatised[Vector], parameters: Privatised[Vector]
    ) -> tuple[Privatised[Vector], Privatised[Vector]]:
        """The gradient (P,) that a mean of the sites' releases stands for, at these values.

        Returns:
            The gradient, and its coefficients in those of the set, (N,).

        Raises:
            RawValueError: one of them is raw.
        """
        with self._pool.borrow(self._recipe) as worker:
            found = post_process(partial(lifted, self.span, worker), parameters, mean)
        return post_process(lambda pair: pair[0], found), post_process(lambda pair: pair[1], found)

    def advance(self, mean: Privatised[Vector], scale: float, number: int) -> Evolved | None:
        """Keep the records that the round's coefficients are largest of, and vary them.

        Args:
            mean: of the units' coefficients, (N,).
            scale: what makes their sum of it, which the selection goes by.
            number: of the round.

        Returns:
            None where the set stays as it is.

        Raises:
            RawValueError: the mean is raw.
            RoundError: the generator made too little; the set is as it was.
        """
        settings = self.settings
        if self._generator is None or number % settings.every:
            return None
        started = time.monotonic()
        seed = f"{self._seed} {number}"
        count = settings.size // settings.fold

        def draw(mean: Vector) -> Selection:
            temperature = settings.selection_temperature
            return select(mean * scale, count, temperature=temperature, seed=seed)

        chosen = post_process(draw, mean)
        grow = partial(_grown, self._generator, seed)
        before = self.current
        found = post_process(grow, before, chosen)
        self._take(found)
        self.previous = before
        return Evolved(
            digest=found.value.digest,
            made=settings.size - count,
            entropy=chosen.value.entropy,
            seconds=round(time.monotonic() - started, 3),
        )

    @property
    def records(self) -> Privatised[Sequence[Record]]:
        """Of the current set, for a checkpoint."""
        return post_process(lambda current: current.records, self.current)


def first_set(
    settings: SyntheticSection, given: Sequence[Record], generator: Generator | None, seed: int
) -> SyntheticSet:
    """The records that are given, and where they are too few, the generator's.

    Args:
        given: public.
        generator: with a model that was not trained on private records yet.

    Raises:
        RoundError: the generator made too little.
    """
    begun = list(given[: settings.size])
    missing = settings.size - len(begun)
    if missing and generator is not None:
        maker = generator

        def make(count: int, attempt: int) -> list[Record]:
            return maker.random(count, f"{seed} 0 {attempt}")

        begun += new_records(missing, begun, make)
    return SyntheticSet(begun)


def _grown(
    generator: Generator, seed: str, before: SyntheticSet, chosen: Selection
) -> SyntheticSet:
    """The seeds at their places, and variations of them at the others'."""
    seeds = [before.records[place] for place in chosen.seeds]
    kept = set(chosen.seeds)
    free = [place for place in range(len(before)) if place not in kept]

    def make(count: int, attempt: int) -> list[Record]:
        parents = [seeds[i % len(seeds)] for i in range(count)]
        return generator.variations(parents, f"{seed} {attempt}")

    made = new_records(len(free), before.records, make)
    records = dict(enumerate(before.records)) | dict(zip(free, made, strict=True))
    return SyntheticSet(records[place] for place in range(len(before)))
