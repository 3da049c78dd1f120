from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fedpriv.errors import AccountingError, LedgerError, SlotError
from fedpriv.privacy.ledger.ledger import Plan, Reservation
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, SystemCsprng
from fedpriv.privacy.mechanism.execution import PlanExecution, Work
from fedpriv.privacy.mechanism.grid import Grid, deviation, grid_of, sum_step
from fedpriv.privacy.mechanism.noise import rounded_gaussian
from fedpriv.privacy.mechanism.noise_share import add_share, shared_grid
from fedpriv.privacy.mechanism.noisy_share import NoisyShare
from fedpriv.privacy.mechanism.privatised import TrustModel
from fedpriv.privacy.mechanism.sampling import poisson_sample

PLAN = Plan("job", "dp-lora", 0.1, 1.5, 2.0, 3, "sha256:" + "c" * 64)
STRICT = replace(PLAN, numerics="strict")
SHARED = replace(PLAN, max_colluding=1, shares=3)
SIZE = 20_000
Pay = Callable[..., Reservation]


def accepts(noise: np.ndarray, sigma: float) -> bool:
    """Whether a two-sided chi-square test at 1e-6 believes that the noise has this deviation."""
    statistic = float(np.sum((noise / sigma) ** 2))
    return bool(chi2.ppf(5e-7, noise.size) < statistic < chi2.isf(5e-7, noise.size))


def release(total: ClippedSum, paid: Reservation, csprng: Any) -> Any:
    """What leaves of a sum over a sample that was drawn already."""
    execution = PlanExecution(paid.plan, total.value.numel())
    return execution.step(paid, Work(0, lambda _: total, _raised), csprng)


def _raised(error: Exception) -> None:
    raise error


def released(pay: Pay, plan: Plan = PLAN) -> np.ndarray:
    grid = grid_of(plan.numerics, plan.clip_norm, SIZE)
    one = 1 if grid is None else round(1 / grid.step)
    total = ClippedSum(zeros(SIZE, grid) + one, plan.clip_norm, grid)
    value = release(total, pay(plan), InsecureRandomness(1, "test")).value
    assert value.dtype == np.float32
    return value.astype(np.float64) - 1


@pytest.mark.parametrize("plan", [PLAN, STRICT])
def test_the_noise_is_the_one_that_was_paid_for(pay: Pay, plan: Plan) -> None:
    noise = released(pay, plan)
    sigma = PLAN.noise_multiplier * PLAN.clip_norm
    assert accepts(noise, sigma)
    assert not accepts(noise, sigma * 2 / 3)
    assert not accepts(noise, sigma * 3 / 2)
    assert abs(noise.mean()) < 6 * sigma / SIZE**0.5


def test_a_step_samples_at_the_rate_that_was_paid_for(pay: Pay) -> None:
    """10⁵ units at 0.1 and at 0.02: neither is within 40 standard deviations of the other."""
    seen: list[int] = []

    def sum_over(units: Any) -> ClippedSum:
        seen.append(len(units))
        return ClippedSum(torch.zeros(3, dtype=torch.float64), 2.0)

    for plan in (PLAN, replace(PLAN, sample_rate=0.02)):
        work = Work(10**5, sum_over, _never)
        PlanExecution(plan, 3).step(pay(plan), work, SystemCsprng())
    planned, fewer = seen
    assert abs(planned - 10_000) < 600
    assert abs(fewer - 2_000) < 300


@pytest.mark.parametrize(
    "change", [{"sample_rate": 0.05}, {"noise_multiplier": 3.0}, {"job": "other"}]
)
def test_a_reservation_of_another_plan_buys_nothing(pay: Pay, change: dict[str, Any]) -> None:
    execution, paid = PlanExecution(replace(PLAN, **change), 3), pay(PLAN)
    with pytest.raises(AccountingError, match="paid for another plan"):
        execution.step(paid, Work(9, _never, _never), SystemCsprng())


def _never(*_: object) -> Any:
    raise AssertionError("not to be called")


@pytest.mark.parametrize("plan", [PLAN, STRICT])
@pytest.mark.parametrize("factor", [0.5, 2 / 3, 1.5])
def test_another_noise_would_be_noticed(pay: Pay, plan: Plan, factor: float) -> None:
    """The mutation: the same test goes red when σ is off."""
    changed = released(pay, replace(plan, noise_multiplier=PLAN.noise_multiplier * factor))
    assert not accepts(changed, PLAN.noise_multiplier * PLAN.clip_norm)


def test_noise_is_fresh_every_time(pay: Pay) -> None:
    total = ClippedSum(torch.zeros(100, dtype=torch.float64), 2.0)
    first, second = (release(total, pay(PLAN), SystemCsprng()).value for _ in range(2))
    assert not np.array_equal(first, second)


def test_an_empty_sum_releases_noise_all_the_same(pay: Pay) -> None:
    total = ClippedSum(torch.zeros(SIZE, dtype=torch.float64), 2.0)
    value = release(total, pay(PLAN), InsecureRandomness(2, "empty")).value
    assert accepts(value.astype(np.float64), 3.0)


def test_a_sum_clipped_to_a_larger_norm_is_refused(pay: Pay) -> None:
    total = ClippedSum(torch.zeros(3, dtype=torch.float64), 2.1)
    with pytest.raises(AccountingError, match="clip_norm"):
        release(total, pay(PLAN), SystemCsprng())


def test_it_rests_on_the_sites_own_word(pay: Pay) -> None:
    total = ClippedSum(torch.zeros(3, dtype=torch.float64), 2.0)
    assert release(total, pay(PLAN), SystemCsprng()).trust_model == TrustModel.LOCAL


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sum_that_is_not_finite_is_refused(pay: Pay, bad: float) -> None:
    total = ClippedSum(torch.tensor([0.0, bad], dtype=torch.float64), 2.0)
    with pytest.raises(AccountingError, match="finite"):
        release(total, pay(PLAN), SystemCsprng())


@pytest.mark.parametrize("plan", [PLAN, STRICT])
def test_a_release_holds_whole_steps_and_nothing_finer(pay: Pay, plan: Plan) -> None:
    """A value near 0 has bits to spare: those of noise made in float64 told what it was added to.

    A float32 keeps multiples below 2²⁴ steps to the last bit. The sum is nowhere on the grid.
    """
    grid = grid_of(plan.numerics, plan.clip_norm, SIZE)
    step = sum_step(plan.clip_norm, SIZE) if grid is None else grid.step
    total = zeros(SIZE, grid) if grid else torch.full((SIZE,), 1 / 3, dtype=torch.float64)
    value = release(ClippedSum(total, 2.0, grid), pay(plan), SystemCsprng()).value
    near = value[np.abs(value) < 2**24 * step].astype(np.float64) / step
    assert near.size > 100
    assert np.array_equal(near, np.rint(near))


def test_a_default_release_is_a_rounded_sum_with_integer_noise(pay: Pay) -> None:
    step = sum_step(PLAN.clip_norm, SIZE)
    exact = torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value = release(ClippedSum(exact, 2.0), pay(PLAN), InsecureRandomness(3)).value
    spread = deviation(PLAN.noise_multiplier, PLAN.clip_norm, step)
    noise = rounded_gaussian(SIZE, spread, InsecureRandomness(3))
    whole = [round(x / step) for x in exact.tolist()]
    assert np.array_equal(value, ((np.array(whole) + noise) * step).astype(np.float32))


def test_noise_that_cannot_be_drawn_is_refused_before_it_is_paid_for() -> None:
    PlanExecution(PLAN, 10**9)
    with pytest.raises(AccountingError, match="noise_multiplier"):
        PlanExecution(replace(PLAN, noise_multiplier=1e8), 10**6)
    with pytest.raises(AccountingError, match="too fine for int64"):
        PlanExecution(STRICT, 10**9)


def test_a_strict_release_is_an_integer_sum_with_integer_noise(pay: Pay) -> None:
    grid = Grid(STRICT.clip_norm, SIZE)
    spread = deviation(STRICT.noise_multiplier, STRICT.clip_norm, grid.step)
    steps = torch.randint(-(2**40), 2**40, (SIZE,), generator=torch.Generator().manual_seed(0))
    paid = pay(STRICT)
    value = release(ClippedSum(steps, 2.0, grid), paid, InsecureRandomness(3)).value
    noise = rounded_gaussian(SIZE, spread, InsecureRandomness(3))
    assert np.array_equal(value, ((steps.numpy() + noise) * grid.step).astype(np.float32))
    assert spread * grid.step >= 3.0


@pytest.mark.parametrize(
    ("plan", "grid"),
    [(STRICT, None), (PLAN, Grid(2.0, 3)), (STRICT, Grid(1.0, 3)), (STRICT, Grid(2.0, 4))],
)
def test_a_sum_off_the_plans_grid_is_refused(pay: Pay, plan: Plan, grid: Grid | None) -> None:
    total = ClippedSum(zeros(3, grid), 1.0, grid)
    with pytest.raises(AccountingError, match="of the plan"):
        release(total, pay(plan), SystemCsprng())


@pytest.mark.parametrize("sensitivity", [-1.0, float("nan")])
def test_a_sensitivity_that_is_none_is_refused(pay: Pay, sensitivity: float) -> None:
    total = ClippedSum(torch.zeros(3, dtype=torch.float64), sensitivity)
    with pytest.raises(AccountingError, match="sensitivity"):
        release(total, pay(PLAN), SystemCsprng())


def test_a_reservation_buys_one_release(pay: Pay) -> None:
    total, paid = ClippedSum(torch.zeros(3, dtype=torch.float64), 2.0), pay(PLAN)
    release(total, paid, SystemCsprng())
    with pytest.raises(SlotError, match="has bought its release"):
        release(total, paid, SystemCsprng())


def test_a_private_reservation_buys_secret_randomness_only(pay: Pay) -> None:
    total, paid = ClippedSum(torch.zeros(3, dtype=torch.float64), 2.0), pay(PLAN, private=True)
    with pytest.raises(AccountingError, match="secret randomness only"):
        release(total, paid, InsecureRandomness(1))
    release(total, paid, SystemCsprng())


def test_a_reservation_is_made_by_a_ledger_alone() -> None:
    with pytest.raises(LedgerError, match=r"made by Ledger\.reserve"):
        Reservation("ledger", True, PLAN, 0, "sha256:" + "0" * 64)


def share(total: ClippedSum, paid: Reservation, members: int = 4, csprng: Any = None) -> NoisyShare:
    """A step whose sum is given."""
    execution, source = PlanExecution(paid.plan, total.value.numel()), csprng or SystemCsprng()
    return execution.share(paid, Work(9, lambda _: total, lambda error: None), source, members)


def ones(plan: Plan = SHARED) -> ClippedSum:
    grid = grid_of(plan.numerics, plan.clip_norm, SIZE)
    return ClippedSum(zeros(SIZE, grid) + 1, 2.0, grid)


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_share_is_made_of_the_exact_sum_in_whole_steps(pay: Pay, numerics: Any) -> None:
    plan = replace(SHARED, numerics=numerics)
    grid = grid_of(numerics, 2.0, SIZE)
    drawn = torch.randn(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = drawn if grid is None else (drawn * 2**40).long()
    kept, step = exact.clone(), 1 if grid else sum_step(2.0, SIZE)
    csprng = InsecureRandomness(1)
    found = share(ClippedSum(exact, 2.0, grid), pay(plan), 3, csprng).values
    again = InsecureRandomness(1)
    poisson_sample(9, plan.sample_rate, again)
    whole = np.array([round(x / step) for x in exact.tolist()], dtype=np.int64)
    assert np.array_equal(found, add_share(whole, shared_grid(plan, SIZE), 2, again))
    assert torch.equal(exact, kept)


@pytest.mark.parametrize(("members", "shares"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_a_share_has_the_noise_of_its_set(pay: Pay, members: int, shares: int) -> None:
    made = share(ones(), pay(SHARED), members)
    grid = shared_grid(SHARED, SIZE)
    noise = made.values * grid.step - 1
    assert made.values.dtype == np.int64
    assert accepts(noise, 3.0 / shares**0.5)
    assert not accepts(noise, 2.0 / shares**0.5) and not accepts(noise, 4.5 / shares**0.5)
    assert abs(noise.mean()) < 6 * 3.0 / SIZE**0.5


def test_a_reservation_buys_one_share(pay: Pay) -> None:
    paid = pay(SHARED)
    share(ones(), paid)
    with pytest.raises(SlotError, match="has bought its release"):
        share(ones(), paid)


def test_a_shared_plan_releases_nothing_by_itself(pay: Pay) -> None:
    execution = PlanExecution(SHARED, SIZE)
    with pytest.raises(AccountingError, match="to be shared"):
        execution.step(pay(SHARED), Work(9, lambda _: ones(), lambda error: None), SystemCsprng())


def test_a_local_plan_shares_nothing(pay: Pay) -> None:
    with pytest.raises(AccountingError, match="is shared"):
        share(ones(PLAN), pay(PLAN), 1)


@pytest.mark.parametrize("members", [0, -1, 5])
def test_a_set_that_the_plan_does_not_allow_gets_no_noise(pay: Pay, members: int) -> None:
    paid = pay(SHARED)
    with pytest.raises(AccountingError, match="members"):
        share(ones(), paid, members)
    share(ones(), paid)


def test_a_private_ledger_pays_for_secret_shares_only(pay: Pay) -> None:
    paid = pay(SHARED, private=True)
    with pytest.raises(AccountingError, match="secret randomness only"):
        share(ones(), paid, csprng=InsecureRandomness(1))
    share(ones(), paid)


def test_a_sum_that_is_none_is_shared_as_zeros(pay: Pay) -> None:
    """Whatever went wrong, the site's part of the sum of the set is noise around 0."""
    grid = shared_grid(SHARED, SIZE)
    for values in ([torch.nan] * SIZE, [1e300] * SIZE, [1.0] * 3):
        total = ClippedSum(torch.tensor(values, dtype=torch.float64), 2.0)
        execution, told = PlanExecution(SHARED, SIZE), []
        found = execution.share(
            pay(SHARED), Work(9, lambda _, total=total: total, told.append), SystemCsprng(), 4
        )
        assert accepts(found.values * grid.step, 3.0 / 3**0.5) and len(told) == 1


def test_what_must_not_leave_shows_nothing_and_can_not_be_copied() -> None:
    secret = NoisyShare(np.ones(3, dtype=np.int64))
    assert repr(secret) == "NoisyShare()"
    assert not hasattr(secret, "__dict__")
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="must not leave"):
            leave(secret)
