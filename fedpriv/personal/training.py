"""Train on a site's own records without noise, until its validation records say enough."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedpriv.config.personal import PersonalSection
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
        loss: on the validation records after it.
    """

    rate: float
    number: int
    loss: float


@dataclass(frozen=True, eq=False)
class Personal:
    """What training on own records came to.

    Attributes:
        values: (P,) float32, those with the lowest loss on the validation records; they may be
            those that training began with.
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
    settings: PersonalSection,
    *,
    seed: int = 0,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> Personal:
    """Continue from `start` (P,) by AdamW at each rate, and keep the best of all passes.

    A rate is given up after `settings.patience` passes that brought no lower loss on the
    validation records (early stopping), and at once where values or losses are no longer finite.

    Args:
        records, validation: at least one each, of different units.
        seed: of the order of the records.
        told: of every pass.

    Privacy:
        None: the values and each loss are made of raw records, and stay at the site.
    """
    first = Epoch(0.0, 0, score(worker, validation, start).eval_loss)
    told(first)
    epochs, best, values = [first], first, start
    for rate in settings.rates:
        lowest, since = first.loss, 0
        passes = _passes(worker, start, records, validation, settings, rate, seed)
        for epoch, moved in passes:
            told(epoch)
            epochs.append(epoch)
            if epoch.loss < best.loss:
                best, values = epoch, moved
            since = 0 if epoch.loss < lowest else since + 1
            lowest = min(lowest, epoch.loss)
            if since >= settings.patience:
                break
    return Personal(values, best, tuple(epochs))


def _passes(
    worker: Worker,
    start: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: PersonalSection,
    rate: float,
    seed: int,
) -> Iterator[tuple[Epoch, Vector]]:
    """The passes at one rate, each with the values after it, as long as all of it is finite."""
    drawn = random.Random(seed)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.0)
    for number in range(1, settings.epochs + 1):
        for batch in batches(records, settings.batch_size, drawn):
            slope = mean_gradient(worker, batch, parameter.detach().numpy())
            parameter.grad = torch.from_numpy(slope)
            optimizer.step()
            if not torch.isfinite(parameter).all():
                return
        moved = parameter.detach().numpy().copy()
        loss = score(worker, validation, moved).eval_loss
        if not math.isfinite(loss):
            return
        yield Epoch(rate, number, loss), moved


def batches(records: Sequence[Example], size: int, drawn: random.Random) -> Iterator[list[Example]]:
    """All records once in a random order, those of a batch of about one length: less padding."""
    order = drawn.sample(records, len(records))
    found: list[list[Example]] = []
    for pool in chunks(order, POOL * size):
        pool.sort(key=lambda example: len(example.input_ids))
        found += chunks(pool, size)
    yield from drawn.sample(found, len(found))
