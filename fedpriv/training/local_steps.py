"""Several private steps of a site in one round: what leaves is the move that they make together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedpriv.privacy.privatised import post_process, received
from fedpriv.training.private_step import private_step
from fedpriv.training.schedule import learning_rate
from fedpriv.training.update import Aggregate, Update

if TYPE_CHECKING:
    from fedpriv.data.population import Population
    from fedpriv.models.vector import Vector
    from fedpriv.privacy.entropy import Entropy
    from fedpriv.privacy.ledger import Reservation
    from fedpriv.privacy.privatised import Privatised
    from fedpriv.protocol import LocalSteps
    from fedpriv.training.private_step import SiteMethod
    from fedpriv.training.worker import Worker


def local_steps(
    method: SiteMethod,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservations: Sequence[Reservation],
    entropy: Callable[[int], Entropy],
    settings: LocalSteps,
    expected_units: float,
) -> Privatised[Vector]:
    """Move by one private step after the other, and return the move, (P,).

    The optimiser starts anew, so that a round that is done again is that round again.

    Args:
        parameters: the values to start from, public.
        reservations: of the round's slots, in order.
        entropy: of the sample and the noise of a slot, secret.
        expected_units: sample rate × declared size; never the realised batch.

    Privacy:
        Every step releases one noisy sum, under a reservation of its own, and all else is made
        of those releases. That they stay here costs what it would if they left: the next step
        starts from what they made.
    """
    start = received(parameters)
    update = Update(settings.optimizer, settings.denoise, start, worker.vector.shapes)
    for paid in reservations:
        plan = paid.plan
        total = private_step(
            method, worker, population, update.vector.value, paid, entropy(paid.slot)
        )
        gradient = post_process(lambda value: value / np.float32(expected_units), total)
        noise = (plan.noise_multiplier * plan.clip_norm / expected_units) ** 2
        update.step(
            Aggregate(gradient, noise, expected_units),
            number=paid.slot + 1,
            lr=learning_rate(settings.optimizer, paid.slot + 1, plan.steps),
        )
    return post_process(np.subtract, update.vector, start)
