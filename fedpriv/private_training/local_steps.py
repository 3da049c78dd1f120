"""Run several private steps of a site in one round. What leaves is their move together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from fedpriv.data.population import Population
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Reservation
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, received
from fedpriv.private_training.method import SiteMethod
from fedpriv.private_training.private_step import private_step
from fedpriv.private_training.released import Move
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import LocalSteps
from fedpriv.public_update.update import Aggregate, Update, denoise_of, learning_rate

log = logging.getLogger(__name__)


def local_steps(
    execution: PlanExecution,
    method: SiteMethod,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservations: Sequence[Reservation],
    csprng: Callable[[int], RandomSource],
    settings: LocalSteps,
    expected_units: float,
    steps: int,
) -> Privatised[Move]:
    """Move by one private step after the other, and return the move. It is as long as a sum.

    The optimiser starts anew, so that a round that is done again is the same round.

    Args:
        method: prepared with `parameters`.
        parameters: the values to start from, public.
        reservations: those of the round's slots, in order.
        csprng: makes a slot's random source for sample and noise, secret.
        expected_units: sample rate × declared size; never the realised batch.
        steps: the number that train in the whole job, on which the learning rate depends.

    Privacy:
        Every step releases one noisy sum, under a reservation of its own, and all else is made of
        those releases. Keeping them here costs the same as if they left: the next step starts from
        what they made. If what is made of them fails or is not finite, the move is 0, because
        another try would run other mechanisms under the same reservations.
    """
    update = new_update(settings, method.start(parameters), worker)
    start = update.vector
    for paid in reservations:
        try:
            values = method.at(parameters, update.vector.value)
        except Exception as error:
            return _no_move(start, error)
        total = private_step(execution, method, worker, population, values, paid, csprng(paid.slot))
        try:
            plan = paid.plan
            gradient = post_process(lambda found: found.values / np.float32(expected_units), total)
            noise = (plan.noise_multiplier * plan.clip_norm / expected_units) ** 2
            rate = learning_rate(settings.optimizer, paid.slot + 1, steps)
            update.move(Aggregate(gradient, noise, expected_units), lr=rate)
        except Exception as error:
            return _no_move(start, error)
    return post_process(_difference, start, update.vector)


def _no_move(start: Privatised[Vector], error: Exception) -> Privatised[Move]:
    log.error("A round's steps can't be used: %s", type(error).__name__)
    return post_process(lambda value: Move(np.zeros_like(value)), start)


def new_update(settings: LocalSteps, start: Vector, worker: Worker) -> Update:
    """Make the optimiser of a round at its beginning.

    Raises:
        ValueError: there is no optimiser with these settings.
    """
    denoise = denoise_of(settings.denoise, worker.vector.shapes)
    return Update(settings.optimizer, received(start), denoise)


def _difference(start: Vector, end: Vector) -> Move:
    move = start - end
    return Move(move if bool(np.isfinite(move).all()) else np.zeros_like(start))
