"""Train on a site's own records without noise, until its validation records say enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.training.passes import passes
from fedpriv.training.scores import score
from fedpriv.training.worker import Worker


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
        moves = passes(
            worker,
            start,
            records,
            rate,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            falling=not validation,
            seed=seed,
        )
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
