"""Measure how fast a processor is at a number format.

`mixed` and `bfloat16` differ from float32 in the products with frozen weights, so these are what is
timed, in the sizes of the model and without its weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpriv.gradients.product import linear
from fedpriv.models.config import ModelSection
from fedpriv.models.stored import linear_sizes
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.microbatch import TRIED
from fedpriv.private_training.worker import device_of

BUDGET = 1.0  # seconds, after which no further size of a product is begun
FEW, FAR = 32, 2.0  # rows of a first product, and how slow it has to be to be the last one
TOKENS = 64  # tokens of a record at most, so that a trial is short


def time_in_halves(model: ModelSection, compute: ComputeSection) -> float:
    """Return the time of products with a model's frozen weights in bfloat16, over that in float32.

    The time is that of forward and backward passes, conversions included, for as many records as a
    step computes at once. The small sizes come first; the large ones are left out if time is up.
    One small product finds a processor that is far slower.

    Raises:
        ModelError: the model's config.json can't be read.
        ConfigError: there is no such device.

    Privacy:
        Records have no part in it.
    """
    device = device_of(compute.device)
    records = compute.microbatch or TRIED.get(device, TRIED["other"])
    around = torch.bfloat16 if compute.dtype == "bfloat16" else torch.float32
    sizes = sorted(linear_sizes(model).items())
    if not sizes:
        return 1.0
    ratio = _ratio(sizes[:1], FEW, around, device)
    if ratio > FAR:
        return ratio
    return _ratio(sizes, records * min(model.max_length, TOKENS), around, device)


def _ratio(
    sizes: Sequence[tuple[tuple[int, int], int]], rows: int, around: torch.dtype, device: str
) -> float:
    spent = {torch.bfloat16: 0.0, torch.float32: 0.0}
    started = time.monotonic()
    for (inputs, outputs), layers in sizes:
        for dtype, outside in zip(spent, (around, torch.float32), strict=True):
            weight = torch.ones(outputs, inputs, dtype=dtype, device=device)
            x, g = (weight.new_ones(rows, size, dtype=outside) for size in (inputs, outputs))
            spent[dtype] += layers * _seconds(partial(_both_ways, x, g, weight), device)
        if time.monotonic() - started > BUDGET:
            break
    return spent[torch.bfloat16] / spent[torch.float32]


def _both_ways(x: Tensor, g: Tensor, weight: Tensor) -> None:
    linear(x, weight)
    linear(g, weight.t())


def _seconds(work: Callable[[], Any], device: str) -> float:
    """Return the seconds of the fastest of three runs; on a CPU, this thread's processor time.

    One thread does it: several would wait for each other on a busy machine, and that would count.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return min(_once(work, device) for _ in range(3))
    finally:
        torch.set_num_threads(threads)


def _once(work: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        started = time.thread_time()
        work()
        return time.thread_time() - started
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started


def speed(model: ModelSection, compute: ComputeSection) -> tuple[float, str]:
    """Return `time_in_halves`, and a sentence that says it.

    Raises:
        ModelError, ConfigError: as `time_in_halves`.
    """
    ratio = time_in_halves(model, compute)
    return ratio, (
        f"compute.dtype = {compute.dtype!r}: in bfloat16 this model's products take"
        f" {ratio:.2g} times as long on this machine as in float32"
    )
