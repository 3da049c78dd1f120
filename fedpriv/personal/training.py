"""Train on a site's own records without noise, until its validation records say enough."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fedpriv.config.personal import PersonalSection
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.scores import score
from fedpriv.training.worker import Worker


@dataclass(frozen=True)
class Epoch:
    """The state after a pass over the records; the first one, of number 0, is before any.

    Attributes:
        rate: learning rate.
        loss: on the validation records.
    """

    rate: float
    number: int
    loss: float


@dataclass(frozen=True, eq=False)
class Personal:
    """What training on own records came to.

    Attributes:
        values: (P,) float32, those with the lowest loss on the validation records, which may be
            those that training began with.
        best: the epoch that made them.
        epochs: all that were tried.
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

    Args:
        validation: of other units than `records`.
        seed: of the order of the records.
        told: of every pass.

    Privacy:
        None: the values and each loss are made of raw records, and stay at the site.
    """
    first = Epoch(0.0, 0, score(worker, validation, start).eval_loss)
    told(first)
    best, values = first, start
    epochs = [first]
    for rate in settings.rates:
        tried = _at_one_rate(worker, start, records, validation, settings, rate, seed)
        lowest, since = float("inf"), 0
        for epoch, moved in tried:
            told(epoch)
            epochs.append(epoch)
            if epoch.loss < best.loss:
                best, values = epoch, moved
            since = 0 if epoch.loss < lowest else since + 1
            lowest = min(lowest, epoch.loss)
            if since >= settings.patience:
                break
    return Personal(values, best, tuple(epochs))


def _at_one_rate(
    worker: Worker,
    start: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: PersonalSection,
    rate: float,
    seed: int,
) -> Iterator[tuple[Epoch, Vector]]:
    """Each pass at one rate, with the values after it."""
    order = random.Random(seed)
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.0)
    anchor = torch.from_numpy(start)
    for number in range(1, settings.epochs + 1):
        shuffled = order.sample(list(records), len(records))
        for begin in range(0, len(shuffled), settings.batch_size):
            batch = shuffled[begin : begin + settings.batch_size]
            values = parameter.detach().numpy()
            parameter.grad = torch.from_numpy(mean_gradient(worker, batch, values))
            if settings.pull:
                parameter.grad += settings.pull * (parameter.detach() - anchor)
            optimizer.step()
        moved = parameter.detach().numpy().copy()
        yield Epoch(rate, number, score(worker, validation, moved).eval_loss), moved
