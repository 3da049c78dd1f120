"""Train on a site's own records without noise, for as long as these say is best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal.choosing import Epoch, choose
from fedpriv.personal.records import OwnParts
from fedpriv.plain_training.passes import passes
from fedpriv.private_training.worker import Worker


@dataclass(frozen=True, eq=False)
class Personal:
    """What training on own records came to.

    Attributes:
        values: (P,) float32, after the chosen number of passes over all records at the chosen rate;
            those that training began with, if no pass lowered the loss.
        best: what was chosen, with the loss on what was left out.
        epochs: all that were tried to choose, the first before any pass; none where nothing was
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

    The rate and the number of passes are chosen by the parts that are left out in turn; see
    `choose`. Where none is, it makes all `settings.epochs` passes at the one rate.

    Args:
        own: at least one record.
        seed: of the order of the records.
        as_for: another model of the same records, for which rate and passes were chosen already.
        told: of every pass.

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
        moves = passes(
            worker,
            start,
            records,
            best.rate,
            epochs=best.number,
            batch_size=settings.batch_size,
            falling=False,
            seed=seed,
        )
        made, values = 0, start
        for made, values in enumerate(moves, 1):  # noqa: B007 - fewer, where numbers overflow
            told(Epoch(best.rate, made, None))
        return made, values

    if as_for is not None and best.number:
        parts = range(own.left_out)
        best = replace(best, without=tuple(trained(own.without(index))[1] for index in parts))
    made, values = trained(own.everything)
    return Personal(values, replace(best, number=made), tried)
