"""How many sites of a simulation compute at once, and what each gets of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.model_size import parameters_of
from fedpriv.private_training.config import ComputeSection
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
    parameters = parameters_of(config.model.name)
    copies = 1 if parameters is None else max(1, int(COPIES // (4 * max(1, parameters))))
    return min(len(config.sites), torch.get_num_threads(), copies)


def hosts_that_fit(there: int, each: float) -> int:
    """Return how many processes fit on `there` GPUs. Each gets whole GPUs, or a share of one."""
    return there * int(1 / each) if each < 1 else int(there // each)


def gpus_of_a_host(compute: ComputeSection, there: int, count: int) -> float:
    """Return the share of a GPU, or the number of whole GPUs, that each process gets.

    Args:
        there: GPUs of this machine.
        count: number of processes.

    Raises:
        ConfigError: there are too few GPUs for so many processes.
    """
    if compute.device == "cpu" or not there:
        return 0.0
    each = compute.gpus_per_site
    if each is None:
        each = float(there // count) if there >= count else 1 / math.ceil(count / there)
    if count > hosts_that_fit(there, each):
        problem = f"is too much for {count} sites at once on {there} GPUs"
        fix = "Lower it, or lower compute.workers."
        raise ConfigError(problem, key="compute.gpus_per_site", value=each, fix=fix)
    return each


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
