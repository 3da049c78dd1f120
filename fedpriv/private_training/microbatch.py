"""How many records are computed at once, where nobody says."""

from __future__ import annotations

import logging

import torch

from fedpriv import memory
from fedpriv.private_training.random_batch import random_batch
from fedpriv.private_training.worker import Worker

log = logging.getLogger(__name__)
ON_A_CPU = 16  # more are no faster: a core's caches are full by then
MOST = 1024
TRIED = {"cpu": 4, "other": 32}  # as fast as more, and each length is tried with so many
SHARE = 0.6  # of a GPU's memory; allocators leave gaps, and there are neighbours
GRADIENTS_SHARE = 16  # on a CPU, gradients may take one in so many of all bytes


def public_microbatch(worker: Worker) -> int:
    """Public records to compute at once: what the recipe says, or what fits; found out once.

    That is a power of two: on a CPU 16 or less, on a GPU as many of the longest as its memory
    holds.

    Privacy:
        Measured on random tokens, and against all the memory that there is: what is free may tell
        of earlier private steps. So what depends on it is public.
    """
    if "public" not in worker.microbatches:
        worker.microbatches["public"] = worker.recipe.compute.microbatch or _that_fit(worker)
    return worker.microbatches["public"]


def private_microbatch(worker: Worker) -> int:
    """Private records to compute at once, whatever memory there is later; found out once.

    As `most_private` says, or where memory runs out, half, and so on.

    Privacy:
        Tried on random tokens of the greatest length; records have no part in it. How many they
        are decides the last bits of their gradients.
    """
    if "private" not in worker.microbatches:
        worker.microbatches["private"] = _tried(worker, most_private(worker))
    return worker.microbatches["private"]


def most_private(worker: Worker) -> int:
    """Of private records: what the recipe says, or as many as it pays to compute together.

    Whether it makes a difference to a gradient's rounding is tried first
    (`fedpriv.private_training.batch_invariance`).
    """
    most = TRIED.get(worker.device, TRIED["other"])
    return worker.recipe.compute.microbatch or min(most, public_microbatch(worker))


def _that_fit(worker: Worker) -> int:
    if worker.device == "cpu":
        each = GRADIENTS_SHARE * worker.vector.size * worker.gradients.dtype.itemsize
        return _power_of_two(min(ON_A_CPU, memory.total() // each))
    one = rehearse(worker, 1)
    try:
        two = rehearse(worker, 2)
    except torch.OutOfMemoryError:
        return 1
    left = int(SHARE * memory.total(worker.device)) - one
    return _power_of_two(min(MOST, 1 + left // max(1, two - one)))


def _tried(worker: Worker, records: int) -> int:
    while records > 1:
        torch.cuda.empty_cache()  # what earlier steps freed is free for this, too
        try:
            rehearse(worker, records)
            break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            log.warning("Out of memory with %d records at once; %d instead.", records, records // 2)
            records //= 2
    return records


def rehearse(worker: Worker, count: int) -> int:
    """Compute a step over random records of the longest length.

    Returns:
        Bytes that it took at most, on a GPU; 0 on a CPU, where the system counts them.

    Privacy:
        Records have no part in it.
    """
    mask = torch.ones(count, worker.recipe.model.max_length, dtype=torch.int64)
    batch = random_batch(worker, mask, seed=0)
    if worker.device != "cpu":
        torch.cuda.reset_peak_memory_stats(worker.device)
    worker.record_gradients(batch)
    return 0 if worker.device == "cpu" else int(torch.cuda.max_memory_allocated(worker.device))


def _power_of_two(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch had no memory left, on whatever device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
