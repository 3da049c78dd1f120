"""One private step at a site: what a plan's execution does with a method and a population."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from fedpriv.data.population import Population
from fedpriv.data.store import SomeUnits
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Reservation
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.execution import PlanExecution, SumOver
from fedpriv.privacy.mechanism.noisy_share import NoisyShare
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.training.method import UnitSum
from fedpriv.training.released import GradientSum
from fedpriv.training.worker import Worker

R = TypeVar("R")
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
        method: prepared.
        parameters: the current trained vector, public.
        csprng: of the sample and the noise, secret.

    Privacy:
        What leaves is the result and nothing else: not the batch size, not the loss; see
        `PlanExecution`. A failure of the whole batch is retried inside `clipped_sum` with the same
        sample.
    """
    step, plan = execution.step, execution.plan
    total = _run(step, plan, method, worker, population, parameters, reservation, csprng)
    return post_process(GradientSum, total)


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
    """Run the step of a plan whose noise is shared, for a set of so many members.

    Args:
        As of `private_step`.

    Privacy:
        Nothing leaves yet: see `PlanExecution.share`.
    """
    step = partial(execution.share, members=members)
    return _run(step, execution.plan, method, worker, population, parameters, reservation, csprng)


def _run(
    step: Callable[[Reservation, int, SumOver, RandomSource, Callable[[Exception], None]], R],
    plan: Plan,
    method: UnitSum,
    worker: Worker,
    population: Population,
    parameters: Vector,
    reservation: Reservation,
    csprng: RandomSource,
) -> R:
    def sum_over(sample: Sequence[int]) -> ClippedSum:
        units = SomeUnits(population.units, sample)  # read when they are computed
        return method.clipped_sum(worker, units, parameters, plan.clip_norm, plan.numerics)

    return step(
        reservation,
        len(population),
        sum_over,
        csprng,
        lambda error: worker.went_on_after(error, STEP_FAILED),
    )
