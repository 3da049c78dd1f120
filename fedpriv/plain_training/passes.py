"""Passes over records in batches by AdamW, without noise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import torch

from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.plain_training.public_records import mean_gradient
from fedpriv.private_training.unit_sum import chunks
from fedpriv.private_training.worker import Worker

POOL = 20  # batches that are sorted by length together
DECAY = 3  # how fast earlier steps lose weight in the mean


def passes(
    worker: Worker,
    start: Vector,
    records: Sequence[Example],
    rate: float,
    *,
    epochs: int,
    batch_size: int,
    falling: bool,
    seed: int = 0,
    gradient: Callable[[Worker, list[Example], Vector], Vector] | None = None,
) -> Iterator[Vector]:
    """Yield the values (P,) after each pass by AdamW from `start`, as long as they are finite.

    A falling rate needs to know the last pass. Where that is still to be chosen, the rate stays the
    same. The values are then the mean of those after all steps so far, in which later ones weigh
    more (polynomial-decay averaging, Shamir & Zhang 2013, η = `DECAY`). This ends about as low, and
    too many passes do less harm (docs/results/own-training.md).

    Args:
        records: at least one.
        falling: whether the rate falls linearly, from the first batch to after the last.
        seed: seed of the order of the records.
        gradient: a function that returns the gradient of a batch at values (P,), (P,). By default
            it is that of the mean loss.

    Privacy:
        None: the values are made of raw records. A site's stay at the site.
    """
    drawn = random.Random(seed)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.0)
    steps = epochs * math.ceil(len(records) / batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / steps if falling else 1.0
    )
    mean, made = parameter.detach().clone(), 0
    for _ in range(epochs):
        for batch in batches(records, batch_size, drawn):
            slope = (gradient or mean_gradient)(worker, batch, parameter.detach().numpy())
            parameter.grad = torch.from_numpy(slope)
            optimizer.step()
            schedule.step()
            if not torch.isfinite(parameter).all():
                return
            made += 1
            mean.lerp_(parameter.detach(), (DECAY + 1) / (DECAY + made))
        yield (parameter.detach() if falling else mean).numpy().copy()


def batches(records: Sequence[Example], size: int, drawn: random.Random) -> Iterator[list[Example]]:
    """Yield all records once in random order. Lengths in a batch are similar, for less padding."""
    order = drawn.sample(records, len(records))
    found: list[list[Example]] = []
    for pool in chunks(order, POOL * size):
        pool.sort(key=lambda example: len(example.input_ids))
        found += chunks(pool, size)
    yield from drawn.sample(found, len(found))
