"""How many sites of a simulation compute at once, and with how many threads each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedpriv.config.job import JobConfig
from fedpriv.model_size import parameters_of
from fedpriv.private_training.worker import device_of

COPIES = 2**31  # bytes that the copies of a model may take together, unless more are asked for


def workers_of(config: JobConfig) -> int:
    """Return how many sites compute at once. The file may state it.

    By default it is one where a GPU does the work, or with engine ``ray`` as many as the GPUs have
    shares for. On a CPU it is one for each core, while the copies of the model are small. A step's
    products are too small to share: one thread for each of two sites is 1.6 times as fast as two
    threads for one site after the other.
    """
    if config.compute.workers is not None:
        return min(config.compute.workers, len(config.sites))
    if device_of(config.compute.device) != "cpu":
        if config.job.engine != "ray":
            return 1
        fitting = hosts_that_fit(torch.cuda.device_count(), config.compute.gpus_per_site or 1.0)
        return max(1, min(len(config.sites), fitting))
    return min(len(config.sites), torch.get_num_threads(), copies_that_fit(config.model.name))


def copies_that_fit(model: str) -> int:
    """Return how many copies of a base model a machine has memory for, at least one."""
    parameters = parameters_of(model)
    return 1 if parameters is None else max(1, int(COPIES // (4 * max(1, parameters))))


def hosts_that_fit(there: int, each: float) -> int:
    """Return how many processes fit on `there` GPUs. Each gets whole GPUs, or a share of one."""
    return there * int(1 / each) if each < 1 else int(there // each)


def own_threads(workers: int) -> Callable[[], None]:
    """Return what a thread for one of `workers` sites calls first, to use its share of cores."""
    share = max(1, torch.get_num_threads() // workers)

    def begin() -> None:
        torch.set_num_threads(share)

    return begin


@contextmanager
def as_own_threads(workers: int) -> Iterator[None]:
    """Compute in this thread with the share that `own_threads` gives, for the time of a block.

    Some things are tried before the first round, such as which batch sizes give a record the same
    bits. They hold for a number of threads. Tried with another number, every step's thread would
    try again.
    """
    threads = torch.get_num_threads()
    own_threads(workers)()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
