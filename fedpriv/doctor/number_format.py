"""Measure how fast a processor is at a number format.

`mixed` and `bfloat16` differ from float32 in the products with frozen weights, so these are what is
timed, in the sizes of the model and without its weights.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.benchmark import Timer

from fedpriv.gradients.product import linear
from fedpriv.models.config import ModelSection
from fedpriv.models.stored import linear_sizes
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.microbatch import TRIED
from fedpriv.private_training.worker import device_of

BUDGET = 1.0  # seconds, after which no further size of a product is begun
FEW, FAR = 32, 2.0  # rows of a first product, and how slow it has to be to be the last one
TOKENS = 64  # tokens of a record at most, so that a trial is short
Sizes = list[tuple[tuple[int, int], int]]  # inputs and outputs, and the number of such layers


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


def _ratio(sizes: Sizes, rows: int, around: torch.dtype, device: str) -> float:
    """Return the ratio for products of these sizes, made in one thread.

    On a CPU it is one of processor time: on a busy machine, waiting would count as well.
    """
    clock: dict[str, Any] = {"timer": time.thread_time} if device == "cpu" else {}
    spent = {torch.bfloat16: 0.0, torch.float32: 0.0}
    started = time.monotonic()
    for (inputs, outputs), layers in sizes:
        for dtype, outside in zip(spent, (around, torch.float32), strict=True):
            weight = torch.ones(outputs, inputs, dtype=dtype, device=device)
            x, g = (weight.new_ones(rows, size, dtype=outside) for size in (inputs, outputs))
            known = {"linear": linear, "x": x, "g": g, "weight": weight}
            timer = Timer("linear(x, weight); linear(g, weight.t())", globals=known, **clock)
            spent[dtype] += layers * timer.timeit(3).mean
        if time.monotonic() - started > BUDGET:
            break
    return spent[torch.bfloat16] / spent[torch.float32]
