"""The synthetic set of a job at its server, and how it changes with what was released."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedpriv.data.spec import DataSpec
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, require_privatised
from fedpriv.synthetic.config import SyntheticSection
from fedpriv.synthetic.generator import Generator, new_records
from fedpriv.synthetic.records import Record, SetChange, SyntheticSet
from fedpriv.synthetic.selection import select


@dataclass(frozen=True)
class Evolved:
    """The change of the set in a round.

    Attributes:
        digest: the digest of the next round's set.
        made: the number of new records in it.
        seconds: the time that making them took.
    """

    digest: str
    made: int
    seconds: float


class Evolution:
    """Hold the set, and let it evolve.

    A job of any method may have a set, to start warm.

    Args:
        first: the set of the first round, public.
        spec, tokenizer: how a record is read.
        generator: makes new records. None for a set that stays as it is.
        seed: the seed of the selections, public.

    Attributes:
        current: the set that the next request is about.
        previous: the set before it.
        examples: the examples of the current set, one for each record. None for a record without a
            target.

    Privacy:
        Post-processing of released coefficients, the released model and public records.
    """

    def __init__(
        self,
        settings: SyntheticSection,
        first: Privatised[SyntheticSet],
        spec: DataSpec,
        tokenizer: Any,
        generator: Generator | None,
        seed: int,
    ) -> None:
        self.settings = settings
        self._spec, self._tokenizer = spec, tokenizer
        self._generator, self._seed = generator, seed
        self.previous: Privatised[SyntheticSet] | None = None
        self._take(first)

    def _take(self, found: Privatised[SyntheticSet]) -> None:
        self.examples = found.value.examples(self._spec, self._tokenizer)
        self.current = found

    def change(self, held: str | None) -> SetChange:
        """Return the change from the set with this digest to the current one.

        If the digest is unknown, the change holds all records.
        """
        known = [one.value for one in (self.current, self.previous) if one is not None]
        base = next((one for one in known if one.digest == held), None)
        return SetChange.between(base, require_privatised(self.current, "current"))

    def advance(self, mean: Privatised[Vector], scale: float, number: int) -> Evolved | None:
        """Keep half of the records, mostly those with the largest coefficients, and vary them.

        Args:
            mean: mean of the units' coefficients, (N,).
            scale: the factor from the mean to the sum, by which records are selected.
            number: number of the round.

        Returns:
            The change, or None where the set stays as it is.

        Raises:
            RawValueError: the mean is raw.
            RoundError: the generator made too little. The set is as it was.
        """
        settings = self.settings
        if self._generator is None or number % settings.every:
            return None
        started = time.monotonic()
        seed = f"{self._seed} {number}"
        count = settings.size // 2
        chosen = post_process(lambda mean: select(mean * scale, count, seed=seed), mean)
        grow = partial(_grown, self._generator, seed)
        before = self.current
        found = post_process(grow, before, chosen)
        self._take(found)
        self.previous = before
        return Evolved(
            digest=found.value.digest,
            made=settings.size - count,
            seconds=round(time.monotonic() - started, 3),
        )

    @property
    def records(self) -> Privatised[Sequence[Record]]:
        """Return the records of the current set, for a checkpoint."""
        return post_process(lambda current: current.records, self.current)


def first_set(
    settings: SyntheticSection, given: Sequence[Record], generator: Generator | None, seed: int
) -> SyntheticSet:
    """Return the given records, and if they are too few, some of the generator's, too.

    Args:
        given: public records.
        generator: a generator whose model was not trained on private records yet.

    Raises:
        RoundError: the generator made too little.
    """
    begun = list(given[: settings.size])
    missing = settings.size - len(begun)
    if missing and generator is not None:
        make = generator.random
        begun += new_records(missing, begun, lambda count, i: make(count, f"{seed} 0 {i}"))
    return SyntheticSet(begun)


def _grown(
    generator: Generator, seed: str, before: SyntheticSet, chosen: Sequence[int]
) -> SyntheticSet:
    """Return the seeds at their places, and variations of them at the other places."""
    seeds = [before.records[place] for place in chosen]
    free = sorted(set(range(len(before))) - set(chosen))

    def make(count: int, attempt: int) -> list[Record]:
        parents = [seeds[i % len(seeds)] for i in range(count)]
        return generator.variations(parents, f"{seed} {attempt}")

    made = new_records(len(free), before.records, make)
    records = dict(enumerate(before.records)) | dict(zip(free, made, strict=True))
    return SyntheticSet(records[place] for place in range(len(before)))
