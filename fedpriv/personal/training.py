"""Train on a site's own records without noise, until its validation records say enough."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.scores import score
from fedpriv.training.unit_sum import chunks
from fedpriv.training.worker import Worker

POOL = 20  # batches that are sorted by length together


@dataclass(frozen=True)
class Epoch:
    """A pass over the records.

    Attributes:
        rate: learning rate.
        number: counts from 1 at each rate; 0 is before any.
        loss: on the validation records after it, if there are any.
    """

    rate: float
    number: int
    loss: float | None


@dataclass(frozen=True, eq=False)
class Personal:
    """What training on own records came to.

    Attributes:
        values: (P,) float32, those with the lowest loss on the validation records, which may be
            those that training began with; without such records, those after the last pass.
        best: the pass that made them.
        epochs: all that were made.
    """

    values: Vector
    best: Epoch
    epochs: tuple[Epoch, ...]


def train_alone(
    worker: Worker,
    start: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: OwnTraining,
    *,
    seed: int = 0,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> Personal:
    """Continue from `start` (P,) by AdamW, and keep what the validation records say is best.

    At each rate it goes on until `settings.patience` passes brought no lower loss on the validation
    records (early stopping), at most `settings.epochs`; the best of all passes is kept. Without
    validation records it makes all `settings.epochs` passes at the one rate, which falls linearly
    to nothing, and keeps the last. Where numbers overflow a rate ends.

    Args:
        records: at least one.
        validation: of other units; may be empty.
        seed: of the order of the records.
        told: of every pass.

    Privacy:
        None: the values and each loss are made of raw records, and stay at the site.
    """
    found = [Epoch(0.0, 0, _loss(worker, validation, start))]
    told(found[0])
    best, values = found[0], start
    for rate in settings.rates:
        lowest, since = found[0].loss, 0
        moves = passes(worker, start, records, rate, settings, seed=seed, falling=not validation)
        for number, moved in enumerate(moves, 1):
            epoch = Epoch(rate, number, _loss(worker, validation, moved))
            if epoch.loss is not None and not math.isfinite(epoch.loss):
                break
            told(epoch)
            found.append(epoch)
            if _lower(epoch.loss, best.loss):
                best, values = epoch, moved
            since = 0 if _lower(epoch.loss, lowest) else since + 1
            lowest = epoch.loss if since == 0 else lowest
            if since >= settings.patience:
                break
    return Personal(values, best, tuple(found))


def _loss(worker: Worker, validation: Sequence[Example], values: Vector) -> float | None:
    return score(worker, validation, values).eval_loss if validation else None


def _lower(loss: float | None, than: float | None) -> bool:
    """Whether it is better; without validation records, whatever comes later is."""
    return loss is None or than is None or loss < than


def passes(
    worker: Worker,
    start: Vector,
    records: Sequence[Example],
    rate: float,
    settings: OwnTraining,
    *,
    seed: int,
    falling: bool,
) -> Iterator[Vector]:
    """The values (P,) after each pass by AdamW from `start`, as long as they are finite.

    Args:
        falling: whether the rate falls linearly, from the first batch to after the last.

    Privacy:
        None, as `train_alone`.
    """
    drawn = random.Random(seed)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.0)
    steps = settings.epochs * math.ceil(len(records) / settings.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 - step / steps if falling else 1.0
    )
    for _ in range(settings.epochs):
        for batch in batches(records, settings.batch_size, drawn):
            slope = mean_gradient(worker, batch, parameter.detach().numpy())
            parameter.grad = torch.from_numpy(slope)
            optimizer.step()
            schedule.step()
            if not torch.isfinite(parameter).all():
                return
        yield parameter.detach().numpy().copy()


def batches(records: Sequence[Example], size: int, drawn: random.Random) -> Iterator[list[Example]]:
    """All records once in a random order, those of a batch of about one length: less padding."""
    order = drawn.sample(records, len(records))
    found: list[list[Example]] = []
    for pool in chunks(order, POOL * size):
        pool.sort(key=lambda example: len(example.input_ids))
        found += chunks(pool, size)
    yield from drawn.sample(found, len(found))
