"""What a step releases, whoever was sampled and whatever failed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedpriv.privacy.ledger.ledger import Plan, Reservation
from fedpriv.privacy.mechanism import execution
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, RandomSource, SystemCsprng
from fedpriv.privacy.mechanism.execution import PlanExecution, Work
from fedpriv.privacy.mechanism.grid import grid_of, sum_step
from fedpriv.privacy.mechanism.noise_share import add_share, shared_grid
from fedpriv.privacy.mechanism.sampling import poisson_sample
from fedpriv.private_training.private_step import private_step, shared_step

SIZE = 5000
Pay = Callable[..., Reservation]


class Method:
    """Asks `work` for the sum, and keeps what it was called with."""

    def __init__(self, work: Callable[..., ClippedSum]) -> None:
        self.work = work
        self.units: Sequence[Any] = ()

    def clipped_sum(
        self, worker: Any, units: Any, parameters: Any, clip_norm: float, numerics: Any
    ) -> ClippedSum:
        assert clip_norm == 2.0
        self.units = units
        return self.work(numerics)


class Population:
    """So many units, known by their numbers."""

    def __init__(self, size: int) -> None:
        self.units = range(size)

    def __len__(self) -> int:
        return len(self.units)


def plan(numerics: Any = "default", rate: float = 0.5) -> Plan:
    return Plan("job", "any", rate, 1.5, 2.0, 3, "sha256:" + "c" * 64, numerics)


def release(method: Method, population: int, reservation: Reservation, csprng: RandomSource) -> Any:
    worker: Any = SimpleNamespace(went_on_after=lambda error, what: None)
    units: Any = Population(population)
    parameters = np.zeros(SIZE, dtype=np.float32)
    execution, half = PlanExecution(reservation.plan, SIZE), cast(Any, method)
    found = private_step(execution, half, worker, units, parameters, reservation, csprng)
    return found.value.values


def is_the_plans_noise(value: np.ndarray) -> bool:
    return value.dtype == np.float32 and 0.9 < value.std() / 3.0 < 1.1


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_step_that_fails_whole_releases_the_plans_noise(pay: Pay, numerics: Any) -> None:
    def fail(asked: Any) -> ClippedSum:
        assert asked == numerics
        raise MemoryError("a very long record was sampled")

    assert is_the_plans_noise(release(Method(fail), 9, pay(plan(numerics)), SystemCsprng()))


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_an_empty_sample_releases_the_plans_noise(pay: Pay, numerics: Any) -> None:
    def nothing(asked: Any) -> ClippedSum:
        grid = grid_of(asked, 2.0, SIZE)
        return ClippedSum(zeros(SIZE, grid), 2.0, grid)

    for population, rate in ((0, 0.5), (3, 1e-12)):
        method = Method(nothing)
        assert is_the_plans_noise(
            release(method, population, pay(plan(numerics, rate)), SystemCsprng())
        )
        assert len(method.units) == 0


def test_what_leaves_is_the_mechanism_on_the_methods_sum_and_nothing_else(pay: Pay) -> None:
    total = ClippedSum(torch.linspace(-9, 9, SIZE, dtype=torch.float64), 2.0)
    method = Method(lambda _: total)
    found = release(method, 40, pay(plan()), InsecureRandomness(1))
    csprng = InsecureRandomness(1)
    assert list(method.units) == poisson_sample(40, 0.5, csprng).tolist()
    execution, told = PlanExecution(plan(), SIZE), list[Exception]()
    alone = execution.step(pay(plan()), Work(0, lambda _: total, told.append), csprng)
    assert np.array_equal(found, alone.value) and not told


@pytest.mark.parametrize(
    "total",
    [
        ClippedSum(torch.full((SIZE,), torch.nan, dtype=torch.float64), 2.0),
        ClippedSum(torch.zeros(SIZE, dtype=torch.float64), 9.0),
        ClippedSum(torch.zeros(SIZE - 1, dtype=torch.float64), 2.0),
    ],
)
def test_a_sum_that_is_none_releases_the_plans_noise(pay: Pay, total: ClippedSum) -> None:
    """Whatever a method returns, an answer does not tell that a unit was sampled."""
    found = release(Method(lambda _: total), 9, pay(plan()), SystemCsprng())
    assert found.shape == (SIZE,) and is_the_plans_noise(found)


@pytest.mark.parametrize("what", ["request", "slot", "vector", "noise", "rate", "members", "none"])
def test_a_sample_and_its_noise_meet_one_computation_only(
    pay: Pay, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Also where the system's random numbers come again: a snapshot of the machine goes on twice.

    With one sample and one noise, the difference of two releases would be that of two sums.
    """
    monkeypatch.setattr(os, "urandom", bytes)
    shared = replace(plan(), max_colluding=1, shares=3)
    samples: list[Any] = []
    noises: list[Any] = []

    def noted(*arguments: Any) -> Any:
        samples.append(poisson_sample(*arguments).tolist())
        return np.array(samples[-1])

    monkeypatch.setattr(execution, "poisson_sample", noted)
    for again in (False, True):
        changed = what if again else "none"
        of = replace(shared, noise_multiplier=1.75) if changed == "noise" else shared
        of = replace(of, sample_rate=0.25) if changed == "rate" else of
        paid = pay(of)
        paid.slot += changed == "slot"
        paid.request_digest += changed if changed == "request" else ""
        total = ClippedSum(zeros(SIZE, None), 2.0)
        method, units = cast(Any, Method(lambda _, total=total: total)), cast(Any, Population(400))
        parameters = np.full(3, float(changed == "vector"), np.float32)
        members = 3 + (changed == "members")
        step = PlanExecution(of, SIZE)
        csprng, worker = SystemCsprng(), cast(Any, None)
        share = shared_step(step, method, worker, units, parameters, paid, csprng, members)
        noises.append(share.values)
    same = what == "none"
    assert (samples[0] == samples[1]) is same
    assert bool(abs(np.corrcoef(*noises)[0, 1]) > 0.1) is same


def test_a_local_step_is_bound_to_its_computation(
    pay: Pay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one before, of noise that is not shared: the sums are equal, the releases are not."""
    monkeypatch.setattr(os, "urandom", bytes)
    nothing = Method(lambda _: ClippedSum(zeros(SIZE, None), 2.0))
    paid = [pay(plan()) for _ in range(3)]
    paid[2].slot = 1
    first, again, other = (release(nothing, 9, one, SystemCsprng()) for one in paid)
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.1


def test_a_shared_step_is_the_same_up_to_the_noise(pay: Pay) -> None:
    shared = replace(plan(), max_colluding=1, shares=3)
    total = ClippedSum(torch.linspace(-9, 9, SIZE, dtype=torch.float64), 2.0)
    method, worker, units = Method(lambda _: total), cast(Any, None), cast(Any, Population(40))
    execution, csprng = PlanExecution(shared, SIZE), InsecureRandomness(1)
    found = shared_step(
        execution, cast(Any, method), worker, units, np.zeros(1), pay(shared), csprng, 4
    ).values
    again = InsecureRandomness(1)
    assert list(method.units) == poisson_sample(40, 0.5, again).tolist()
    whole = np.array([round(x / sum_step(2.0, SIZE)) for x in total.value.tolist()], np.int64)
    assert np.array_equal(found, add_share(whole, shared_grid(shared, SIZE), 3, again))


def test_a_shared_step_that_fails_whole_is_noise_and_says_so_within_the_site(pay: Pay) -> None:
    def fail(asked: Any) -> ClippedSum:
        raise MemoryError("a very long record was sampled")

    shared = replace(plan(), max_colluding=1, shares=3)
    told: list[Exception] = []
    worker: Any = SimpleNamespace(went_on_after=lambda error, what: told.append(error))
    execution, method = PlanExecution(shared, SIZE), cast(Any, Method(fail))
    units = cast(Any, Population(9))
    csprng = InsecureRandomness(1)
    found = shared_step(execution, method, worker, units, np.zeros(1), pay(shared), csprng, 4)
    again = InsecureRandomness(1)
    poisson_sample(9, 0.5, again)
    zeros = np.zeros(SIZE, np.int64)
    assert np.array_equal(found.values, add_share(zeros, shared_grid(shared, SIZE), 3, again))
    assert [type(error) for error in told] == [MemoryError]
