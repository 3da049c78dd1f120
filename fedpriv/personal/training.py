"""Train on a site's own records without noise, for as long as the records say is best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal.records import OwnParts
from fedpriv.plain_training.passes import passes
from fedpriv.plain_training.scores import score
from fedpriv.private_training.worker import Worker

Passes = Callable[..., Iterator[Vector]]


@dataclass(frozen=True)
class Epoch:
    """A pass over the records.

    Attributes:
        rate: learning rate.
        number: the pass's number, from 1 at each rate. 0 is before any pass.
        loss: the loss after it, as the mean over the parts that were left out; None where none is.
        without: for the best pass, the values (P,) that were trained without each of these parts.
    """

    rate: float
    number: int
    loss: float | None
    without: tuple[Vector, ...] = field(default=(), repr=False, compare=False)

    @property
    def said(self) -> str:
        """Return the pass in a few words."""
        return f"{self.rate:g} × {self.number}" if self.number else "not trained"


def choose(
    worker: Worker,
    start: Vector,
    own: OwnParts,
    settings: OwnTraining,
    *,
    seed: int = 0,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> tuple[Epoch, tuple[Epoch, ...]]:
    """Choose the best pass of all that were tried, with `start` (P,) among them. Return all, too.

    A rate ends after `settings.patience` passes without a lower loss, after `settings.epochs`, or
    where numbers overflow. Rates are tried from the highest down, because it takes the fewest
    passes, until a lower one is no better.

    Args:
        own: records, with at least one part to leave out.
        seed: seed of the order of the records.
        told: told of every pass.

    Privacy:
        None: made of raw records, and stays at the site.
    """
    passes_over = _passes(worker, start, settings, seed)
    looked_at = range(own.left_out)
    untrained = [start for _ in looked_at]
    before = _loss(worker, own, untrained)
    tried = [Epoch(0.0, 0, before)]
    best = replace(tried[0], without=tuple(untrained))
    told(tried[0])
    for rate in sorted(settings.rates, reverse=True):
        lowest, since = before, 0
        moves = [
            passes_over(own.without(index), rate, epochs=settings.epochs) for index in looked_at
        ]
        for number, values in enumerate(zip(*moves, strict=False), 1):
            loss = _loss(worker, own, values)
            if not math.isfinite(loss):
                break
            epoch = Epoch(rate, number, loss)
            told(epoch)
            tried.append(epoch)
            if best.loss is not None and loss < best.loss:
                best = replace(epoch, without=tuple(values))
            since = 0 if loss < lowest else since + 1
            lowest = min(lowest, loss)
            if since >= settings.patience:
                break
        if best.number and best.rate != rate:
            break
    return best, tuple(tried)


def _passes(worker: Worker, start: Vector, settings: OwnTraining, seed: int) -> Passes:
    """Return a function that makes passes over records, at a constant rate, for some `epochs`."""
    how: dict[str, Any] = {"batch_size": settings.batch_size, "falling": False, "seed": seed}
    return partial(passes, worker, start, **how)


def _loss(worker: Worker, own: OwnParts, values: Sequence[Vector]) -> float:
    """Return the mean loss of each part under the model that was trained without it."""
    parts = own.parts[: own.left_out]
    losses = [score(worker, part, one).eval_loss for part, one in zip(parts, values, strict=True)]
    return statistics.fmean(losses, weights=list(map(len, parts)))


@dataclass(frozen=True, eq=False)
class Personal:
    """Hold the result of training on own records.

    Attributes:
        values: (P,) float32, after the chosen number of passes over all records at the chosen rate.
            If no pass lowered the loss, these are the values that training began with.
        best: the chosen pass, with its loss on the parts that were left out.
        epochs: all passes that were tried, the first before any training; empty where nothing was
            chosen.
    """

    values: Vector
    best: Epoch
    epochs: tuple[Epoch, ...] = ()


def train_alone(
    worker: Worker,
    start: Vector,
    own: OwnParts,
    settings: OwnTraining,
    *,
    seed: int = 0,
    as_for: Personal | None = None,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> Personal:
    """Continue from `start` (P,) by AdamW, over all records.

    The rate and the number of passes are chosen by the parts that are left out in turn, see
    `choose`. Where none is left out, it makes all `settings.epochs` passes at the one rate.

    Args:
        own: at least one record.
        seed: seed of the order of the records.
        as_for: another model of the same records, for which rate and passes were already chosen.
        told: told of every pass.

    Privacy:
        None: the values and each loss are made of raw records, and stay at the site.
    """
    if as_for is not None:
        best, tried = as_for.best, as_for.epochs
    elif own.left_out:
        best, tried = choose(worker, start, own, settings, seed=seed, told=told)
    else:
        best, tried = Epoch(settings.rates[0], settings.epochs, None), ()

    def trained(records: Sequence[Example]) -> tuple[int, Vector]:
        moves = _passes(worker, start, settings, seed)(records, best.rate, epochs=best.number)
        made, values = 0, start
        for made, values in enumerate(moves, 1):  # noqa: B007 - fewer, where numbers overflow
            told(Epoch(best.rate, made, None))
        return made, values

    if as_for is not None and best.number:
        parts = range(own.left_out)
        best = replace(best, without=tuple(trained(own.without(index))[1] for index in parts))
    made, values = trained(own.everything)
    return Personal(values, replace(best, number=made), tried)
