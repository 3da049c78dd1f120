"""Look at held-out units: how far, with noise, losses and accuracies are from public numbers.

A look takes slots of the job's own plan, at its sample rate, noise and clip norm, over the units
that nobody trains on instead of those that train. So it is as private as training is, and paid
from the same ledger in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedpriv.config.looks import LooksSection
from fedpriv.data.batch import Batch
from fedpriv.data.population import Population
from fedpriv.data.store import Units
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Reservation
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.method import UnitSum
from fedpriv.private_training.private_step import private_step
from fedpriv.private_training.record_loss import record_scores
from fedpriv.private_training.released import GradientSum, HeldOutSum
from fedpriv.private_training.unit_sum import sum_of_units
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import Centres

SIZE = 2  # values of a release: one for the loss, one for the accuracy


@dataclass(frozen=True)
class Distances:
    """The vector that a unit adds to a look: its scores' distances from the centres, clipped once.

    The scores of a unit are the means over its records. A distance of one range has the length of
    the clip norm; loss and accuracy are one vector, so that one noise pays for both. A record that
    has nothing to predict adds 0, as if it were at the centres.

    Args:
        ranges: the ranges of the proposal.
        centres: the centres of the request; public, whatever they are.

    Privacy:
        Each record is computed alone, in any numerics: with a small range the last bit of a loss
        decides where a vector points, and that bit must not depend on who else was sampled.
    """

    ranges: LooksSection
    centres: Centres

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Prepare nothing."""
        return SIZE

    def clipped_sum(
        self, worker: Worker, units: Units, parameters: Vector, clip_norm: float, numerics: Numerics
    ) -> ClippedSum:
        """Sum the units' distances, (2,), of norm at most `clip_norm` each."""
        worker.vector.write(parameters)
        values = partial(self._of_records, worker, clip_norm)
        return sum_of_units(
            worker, units, clip_norm, numerics, size=SIZE, values=values, alone=True
        )

    def _of_records(self, worker: Worker, clip_norm: float, batch: Batch) -> Tensor:
        """Return the records' distances, (B, 2), float64."""
        losses, accuracies, counted = record_scores(worker.model, batch)
        far = (losses - self.centres.loss) / self.ranges.loss_range
        wrong = (accuracies - self.centres.accuracy) / self.ranges.accuracy_range
        distances = clip_norm * torch.stack([far, wrong], 1)
        return distances.masked_fill(~counted.unsqueeze(1), 0.0)


def look(
    execution: PlanExecution,
    distances: UnitSum,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservations: Sequence[Reservation],
    csprng: Callable[[int], RandomSource],
) -> Privatised[HeldOutSum]:
    """Run the steps of a look, each with a sample and noise of its own, and add them up.

    Args:
        population: the held-out units.
        parameters: the trained vector to look at, public.
        reservations: those of the look's slots.
        csprng: makes a slot's random source for sample and noise, secret.

    Privacy:
        Every step releases one noisy sum, paid by a reservation of its own; what leaves is their
        sum alone. Its noise has √(number of steps) times the deviation of one step's.
    """
    sums = [
        private_step(execution, distances, worker, population, parameters, paid, csprng(paid.slot))
        for paid in reservations
    ]

    def total(*found: GradientSum) -> HeldOutSum:
        values = np.stack([one.values for one in found]).sum(0, dtype=np.float64)
        return HeldOutSum(np.asarray(values, np.float32))

    return post_process(total, *sums)
