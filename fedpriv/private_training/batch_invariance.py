"""Compute values of several records at once, each with the same bits whatever the sample is.

A kernel is chosen by the shape of a batch, and another one may round otherwise. So each length is
tried on random tokens, before anything is paid, to find which sizes of batches give a record's
gradient the same bits, in every place and whoever its neighbours are. Only such sizes are used.
Where records are too few for one, copies fill it up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpriv.data.batch import Batch, padded_length
from fedpriv.data.encode import Example
from fedpriv.kept import kept
from fedpriv.private_training.microbatch import (
    is_out_of_memory,
    most_private,
    power_of_two,
    private_microbatch,
)
from fedpriv.private_training.worker import Worker

log = logging.getLogger(__name__)
Values = Callable[[Batch], Tensor]
TRIALS = 6  # batches of the largest size, with which a length is tried
COST = 2.0  # trials may take as long as so many steps of the longest records,
SHARE = 0.1  # and as this share of a job's steps


class BatchInvariant:
    """Compute values of records of one padded length, each from its record alone, bit for bit.

    If memory runs out, a record has no value: in another size of batch its bits might differ.

    Args:
        values: makes (B, R) of a batch: a row for each record, from what `GradientEngine.stream`
            hands over of that record, by arithmetic that is the same for every place. It returns a
            tensor of its own.

    Privacy:
        What decides how a record is computed is public: the machine, settings, and its own length.
    """

    def __init__(self, worker: Worker, values: Values) -> None:
        self._worker, self._values = worker, values

    def __call__(self, examples: Sequence[Example], length: int) -> Tensor:
        """Compute (B, R) of B examples, at most `private_microbatch` of them at a time."""
        found = []
        for places, counted in batches_of(_sizes(self._worker, length), len(examples)):
            batch = self._worker.batch([examples[place] for place in places], length)
            found.append(self._values(batch)[:counted])
        return torch.cat(found)


def try_lengths(worker: Worker, records: float, steps: int, *, ticks: bool = False) -> None:
    """Try, where it pays, how many records of each padded length may be computed at once.

    What is found is kept for the next start, so that a model is tried once on a machine.

    Args:
        records: the most records of a step, by public settings and the declared size.
        steps: the number of the job's steps.
        ticks: compute each record alone where one by itself would cost as much as a batch.

    Privacy:
        What is tried, and whether, follows from public settings and random tokens. The lengths that
        records have play no part: the time or a file would tell of them (laws 18 and 19).
    """
    longest, threads = worker.recipe.model.max_length, torch.get_num_threads()
    lengths = sorted({padded_length(length, longest) for length in range(1, longest + 1)})
    # Sites of a simulation share what was found.
    most = max(worker.microbatches.get("private", 1), _that_pay(worker, lengths, records, steps))
    while most > 1 and (most, longest, threads) not in worker.invariant_sizes:
        log.info("Trying %d records at once, of %d lengths, on random texts.", most, len(lengths))
        try:
            torch.cuda.empty_cache()  # what earlier steps freed is free for this, too
            found = kept(_tried_on(worker, most), partial(_all_tried, worker, most, lengths))
        except (RuntimeError, MemoryError) as error:
            why, most = type(error).__name__, most // 2 if is_out_of_memory(error) else 1
            log.warning("%s with several records at once; at most %d instead.", why, most)
        else:
            sizes = zip(lengths, map(tuple, found), strict=True)
            worker.invariant_sizes |= {(most, one, threads): size for one, size in sizes}
    known = worker.invariant_sizes
    if ticks and most > 1 and any(known[most, one, threads][-1] > 1 for one in lengths):
        # A record by itself would cost as much as the copies beside it, and a tick for all that.
        most = 1
    worker.microbatches["private"] = most


def _that_pay(worker: Worker, lengths: Sequence[int], records: float, steps: int) -> int:
    """Return the stated batch, or as many as share a length, if trying them costs at most `COST`.

    A batch saves about the same time for each record in it, and few records of a step have the same
    length.
    """
    if worker.recipe.compute.microbatch is not None:
        return worker.recipe.compute.microbatch
    tokens = min(COST, SHARE * steps) * records * lengths[-1]
    most = min(records / len(lengths), tokens / (TRIALS * sum(lengths)))
    return 1 if most < 2 else power_of_two(min(int(most), most_private(worker)))


def _tried_on(worker: Worker, most: int) -> dict[str, Any] | None:
    """Return all that decides a trial's result, beside the machine; None if not all is known."""
    recipe = worker.recipe
    if not worker.base.digest:
        return None
    return {
        "trial": "batches",
        "base": [worker.base.digest, worker.base.begin_digest],
        "trained": worker.vector.digest,
        "attention": worker.model.config._attn_implementation,
        "model": recipe.model.model_dump(mode="json", exclude={"name"}),
        "compute": recipe.compute.model_dump(mode="json"),
        "most": most,
        "threads": torch.get_num_threads(),
        "products": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _all_tried(worker: Worker, most: int, lengths: Sequence[int]) -> list[Sequence[int]]:
    return [_tried_sizes(worker, most, length) for length in lengths]


def _sizes(worker: Worker, length: int) -> Sequence[int]:
    known, most = worker.invariant_sizes, private_microbatch(worker)
    key = (most, length, torch.get_num_threads())
    if key not in known:
        if worker.is_settled:
            return (1,)
        known[key] = invariant_sizes(worker, most, length)
    return known[key]


def batches_of(sizes: Sequence[int], records: int) -> Iterator[tuple[list[int], int]]:
    """Divide records into batches of these sizes. Yield which are in each, and how many count.

    A batch has the size of the records that are left, or the largest size of which no more than a
    quarter is copies, or the smallest size. Copies of the last record fill it up.
    """
    start = 0
    while start < records:
        left = records - start
        fitting = (size for size in sizes if 4 * left >= 3 * size)
        size = left if left in sizes else next(fitting, sizes[-1])
        kept = min(size, left)
        yield [min(start + place, records - 1) for place in range(size)], kept
        start += kept


def invariant_sizes(worker: Worker, most: int, length: int) -> Sequence[int]:
    """Return sizes of batches in which a record's gradient has the same bits, the largest first.

    They are `most`, its half, and so on, as far as they agree with `most` in every place and
    whoever the neighbours are. It is 1 alone if `most` does not agree with itself. The trial uses
    the values before any training, moved a little, because half of a fresh adapter's gradients are
    0. So the answer is always the same. The model's own values are put back.

    Privacy:
        Neither records nor what a server sends have a part in it.
    """
    if most == 1:
        return (1,)
    try:
        return _tried_sizes(worker, most, length)
    except (RuntimeError, MemoryError):
        return (1,)


def _tried_sizes(worker: Worker, most: int, length: int) -> Sequence[int]:
    noise = torch.randn(worker.vector.size, generator=torch.Generator().manual_seed(2)) * 0.02
    original = worker.vector.read()
    try:
        worker.vector.write(worker.initial + noise.numpy())
        return _Trial(worker, most, length).sizes()
    finally:
        worker.vector.write(original)


class _Trial:
    """Random records, all but the first padded, and their gradients in the largest batch."""

    def __init__(self, worker: Worker, most: int, length: int) -> None:
        mask = torch.ones(most, length, dtype=torch.int64)
        for row in range(most):
            mask[row, max(1, length - row) :] = 0
        self._worker, self._records = worker, worker.random_batch(mask, seed=3)
        self._order = torch.arange(most)
        self._expected = self._gradients(self._order)

    def sizes(self) -> Sequence[int]:
        most, expected = len(self._order), self._expected
        usable = bool(torch.isfinite(expected).all()) and bool(expected.any(1).all())
        # Beside copies of itself: the first, which is not padded, and the last, which is padded
        # most.
        alike = (torch.full_like(self._order, member) for member in (0, most - 1))
        backwards = self._order.flip(0)
        if not (usable and all(map(self._is_expected, (backwards, *alike)))):
            return (1,)
        halves = (most >> power for power in range(1, most.bit_length()))
        return most, *(size for size in halves if self._agrees(backwards, size))

    def _agrees(self, order: Tensor, size: int) -> bool:
        """Tell whether batches of a size give the expected gradients."""
        starts = range(0, len(order) - size + 1, size)
        return all(self._is_expected(order[start : start + size]) for start in starts)

    def _is_expected(self, members: Tensor) -> bool:
        return torch.equal(self._gradients(members), self._expected[members])

    def _gradients(self, members: Tensor) -> Tensor:
        made = self._records
        batch = Batch(made.input_ids[members], made.attention_mask[members], made.labels[members])
        return self._worker.record_gradients(batch)
