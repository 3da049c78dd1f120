"""Run one private step at a site, with a plan's execution, a method and a population."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from fedpriv.data.population import Population
from fedpriv.data.store import SomeUnits
from fedpriv.files import canonical_json, sha256
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Reservation
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.execution import PlanExecution, Work
from fedpriv.privacy.mechanism.noisy_share import NoisyShare
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.private_training.method import UnitSum
from fedpriv.private_training.released import GradientSum
from fedpriv.private_training.worker import Worker

STEP_FAILED = "Steps fail, and release noise only"


def private_step(
    execution: PlanExecution,
    method: UnitSum,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservation: Reservation,
    csprng: RandomSource,
) -> Privatised[GradientSum]:
    """Run the step that a reservation paid for.

    Args:
        method: already prepared.
        parameters: the current trained vector, public.
        csprng: the random source of sample and noise, secret.

    Privacy:
        What leaves is the result and nothing else: not the batch size, not the loss; see
        `PlanExecution`. A failure of the whole batch is retried inside `clipped_sum` with the same
        sample.
    """
    bound = csprng.bound(purpose_of(reservation, parameters))
    work = _work(execution.plan, method, worker, population, parameters)
    return post_process(GradientSum, execution.step(reservation, work, bound))


def purpose_of(reservation: Reservation, parameters: Vector, members: int = 1) -> bytes:
    """Name what a slot computes: all public values that decide what is added to what noise.

    Sample and noise are drawn for that name. So if the system's random numbers come again, as in a
    virtual machine that goes on from a snapshot of its memory, one sample and one noise never meet
    two vectors, rates, deviations or numbers of shares. If all are the same, so is the release.

    Args:
        members: the number of sites in the set, if the noise is shared.
    """
    paid = [reservation.ledger, reservation.slot, reservation.request_digest, members]
    values = sha256(np.ascontiguousarray(parameters, "<f4").tobytes())
    return canonical_json([*paid, asdict(reservation.plan), asdict(reservation.event), values])


def shared_step(
    execution: PlanExecution,
    method: UnitSum,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservation: Reservation,
    csprng: RandomSource,
    members: int,
) -> NoisyShare:
    """Run the step of a plan whose noise is shared, for a set of `members` sites.

    Args:
        See `private_step`.

    Privacy:
        Nothing leaves yet: see `PlanExecution.share`.
    """
    bound = csprng.bound(purpose_of(reservation, parameters, members))
    work = _work(execution.plan, method, worker, population, parameters)
    return execution.share(reservation, work, bound, members)


def _work(
    plan: Plan, method: UnitSum, worker: Worker, population: Population, parameters: Vector
) -> Work:
    def sum_over(sample: Sequence[int]) -> ClippedSum:
        units = SomeUnits(population.units, sample)  # read when they are computed
        return method.clipped_sum(worker, units, parameters, plan.clip_norm, plan.numerics)

    def told(error: Exception) -> None:
        worker.went_on_after(error, STEP_FAILED)

    return Work(len(population), sum_over, told)
