"""One private step at a site: sample, per-record gradients, clip, add up, add noise, release."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from fedpriv.data.store import SomeUnits
from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.grid import grid_of
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.privacy.mechanism.release import check_sum, release_gaussian
from fedpriv.privacy.mechanism.sampling import poisson_sample
from fedpriv.privacy.usual import Numerics

if TYPE_CHECKING:
    from fedpriv.data.encode import Example
    from fedpriv.data.population import Population
    from fedpriv.models.vector import Vector
    from fedpriv.privacy.ledger.ledger import Reservation
    from fedpriv.privacy.mechanism.csprng import RandomSource
    from fedpriv.training.worker import Worker

log = logging.getLogger(__name__)
Unit = Sequence["Example"]


class SiteMethod(Protocol):
    """The site's half of a method, found by name in the group ``fedpriv.site_methods``.

    Made for every request; of the job's `Span`, if it projects.
    """

    projects: ClassVar[bool]

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Compute what needs no records, before anything is paid.

        Returns:
            How many values a sum has.

        Raises:
            FedprivError: it can't be computed; the site refuses, and has spent nothing.
        """
        ...

    def start(self, parameters: Vector) -> Vector:
        """What the optimiser of local steps moves, as a round begins; as long as a sum."""
        ...

    def at(self, parameters: Vector, moved: Vector) -> Vector:
        """The trained vector that a moved start stands for."""
        ...

    def clipped_sum(
        self,
        worker: Worker,
        units: Sequence[Unit],
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics,
    ) -> ClippedSum:
        """The sum over units of a vector of norm at most `clip_norm` each.

        Must not raise for what a unit holds: a unit that fails contributes 0. In strict numerics
        a unit's vector is computed alone, and the sum is on the grid of `grid_of`.
        """
        ...


def private_step(
    method: SiteMethod,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservation: Reservation,
    csprng: RandomSource,
    size: int,
) -> Privatised[Vector]:
    """Run the mechanism that a reservation paid for.

    Args:
        method: prepared.
        parameters: the current trained vector, public.
        size: of a sum, as `prepare` said.
        csprng: of the sample and the noise, secret.

    Privacy:
        What leaves is the result and nothing else: not the batch size, not the loss. Every unit
        is in the sample with probability ``sample_rate`` on its own; an empty sample releases
        noise all the same. A failure of the whole batch is retried inside `clipped_sum` with
        the same sample, and if nothing helps, the release is noise around 0.
    """
    chosen = poisson_sample(len(population), reservation.plan.sample_rate, csprng)
    plan = reservation.plan
    try:
        units = SomeUnits(population.units, chosen.tolist())  # read when they are computed
        total = method.clipped_sum(worker, units, parameters, plan.clip_norm, plan.numerics)
        check_sum(total, plan)
        if total.value.shape != (size,):
            raise AccountingError(f"Expected a sum of {size} values.")
    except Exception as error:
        # No answer at all would tell something of the sample; noise around 0 does not.
        kind = type(error).__name__
        if not worker.failures[kind]:  # each time would tell when it was sampled
            log.error("Steps fail, and release noise only: %s", kind)
        worker.failures[kind] += 1
        grid = grid_of(plan.numerics, plan.clip_norm, size)
        total = ClippedSum(zeros(size, grid), 0.0, grid)
    return release_gaussian(total, reservation, csprng)
