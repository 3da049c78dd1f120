"""Decide how many records are computed at once, if no setting says it."""

from __future__ import annotations

import torch

from fedpriv import memory
from fedpriv.private_training.worker import Worker

ON_A_CPU = 16  # more are no faster: a core's caches are full by then
MOST = 1024
TRIED = {"cpu": 4, "other": 32}  # more are no faster, and each length is tried with so many
SHARE = 0.6  # share of a GPU's memory; allocators leave gaps, and there are neighbours
GRADIENTS_SHARE = 16  # on a CPU, gradients may take one byte in so many of its memory


def public_microbatch(worker: Worker) -> int:
    """Return how many public records to compute at once: the recipe's number, or what fits.

    What fits is found once. It is a power of two: on a CPU 16 or less, on a GPU as many of the
    longest as its memory holds.

    Privacy:
        Measured on random tokens and against all the memory of the device: the free part may tell
        of earlier private steps. So what depends on it is public.
    """
    if "public" not in worker.microbatches:
        worker.microbatches["public"] = worker.recipe.compute.microbatch or _that_fit(worker)
    return worker.microbatches["public"]


def private_microbatch(worker: Worker) -> int:
    """Return how many private records to compute at once: what was tried, or `most_private`."""
    return worker.microbatches.setdefault("private", most_private(worker))


def most_private(worker: Worker) -> int:
    """Return how many private records to compute at once: the recipe's number, or what pays.

    `fedpriv.private_training.batch_invariance` first tries whether that number changes a gradient's
    rounding.
    """
    most = TRIED.get(worker.device, TRIED["other"])
    return worker.recipe.compute.microbatch or min(most, public_microbatch(worker))


def _that_fit(worker: Worker) -> int:
    if worker.device == "cpu":
        each = GRADIENTS_SHARE * worker.vector.size * worker.gradients.dtype.itemsize
        return power_of_two(min(ON_A_CPU, memory.total() // each))
    one = rehearse(worker, 1)
    try:
        two = rehearse(worker, 2)
    except torch.OutOfMemoryError:
        return 1
    left = int(SHARE * memory.total(worker.device)) - one
    return power_of_two(min(MOST, 1 + left // max(1, two - one)))


def rehearse(worker: Worker, count: int) -> int:
    """Compute a step over random records of the longest length.

    Returns:
        Bytes that it took at most, on a GPU; 0 on a CPU, where the system counts them.

    Privacy:
        Records have no part in it.
    """
    mask = torch.ones(count, worker.recipe.model.max_length, dtype=torch.int64)
    batch = worker.random_batch(mask, seed=0)
    if worker.device != "cpu":
        torch.cuda.reset_peak_memory_stats(worker.device)
    worker.record_gradients(batch)
    return 0 if worker.device == "cpu" else int(torch.cuda.max_memory_allocated(worker.device))


def power_of_two(number: int) -> int:
    """Return the largest power of two that is no more than a number, and 1 at least."""
    return 1 << (max(1, number).bit_length() - 1)


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether torch had no memory left, on any device."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
