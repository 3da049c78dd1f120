from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.rounded_shares import log_total_variation
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism import noise_share
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, SystemCsprng
from fedpriv.privacy.mechanism.grid import Grid, deviation, sum_step
from fedpriv.privacy.mechanism.noise import LOG_SAMPLER_ERROR, rounded_gaussian
from fedpriv.privacy.mechanism.noise_share import (
    LEAST_DEVIATION,
    SharedGrid,
    Whole,
    _log_added,
    add_share,
    check_added_delta,
    log_added_delta,
    plan_shares,
    shared_grid,
)
from fedpriv_strategies.sum_of_set import bits_for, total_deviation

SIZE = 20_000
PLAN = Plan("job", "dp-lora", 0.1, 1.5, 2.0, 3, "sha256:" + "c" * 64, "default", 1, 3)


def shared(**changes: Any) -> SharedGrid:
    return shared_grid(replace(PLAN, **changes), SIZE)


def whole(*values: int) -> Whole:
    return np.array(values, dtype=np.int64)


def accepts(noise: np.ndarray, sigma: float) -> bool:
    """Whether a two-sided chi-square test at 1e-6 believes that the noise has this deviation."""
    statistic = float(np.sum((noise / sigma) ** 2))
    return bool(chi2.ppf(5e-7, noise.size) < statistic < chi2.isf(5e-7, noise.size))


@pytest.mark.parametrize(
    ("members", "max_colluding", "shares"),
    [(4, 1, 3), (4, 0, 4), (2, 1, 1), (1, 1, 1), (1, 0, 1), (3, 5, 1), (50, 24, 26)],
)
def test_noise_is_divided_among_those_who_do_not_collude(
    members: int, max_colluding: int, shares: int
) -> None:
    assert shares_of(members, max_colluding) == shares


def test_a_plan_says_how_many_may_add_up() -> None:
    assert [plan_shares(PLAN, members) for members in (1, 2, 3, 4)] == [1, 1, 2, 3]
    for members in (0, 5):
        with pytest.raises(AccountingError, match="members"):
            plan_shares(PLAN, members)
    with pytest.raises(AccountingError, match="is shared"):
        plan_shares(replace(PLAN, max_colluding=None, shares=1), 1)


@pytest.mark.parametrize("changes", [{"max_colluding": -1}, {"max_colluding": True}, {"shares": 0}])
def test_a_plan_has_counts_of_sites(changes: Any) -> None:
    assert PLAN.is_shared
    with pytest.raises(AccountingError, match=f"Expected {next(iter(changes))}"):
        replace(PLAN, **changes)


def test_a_plan_that_shares_nothing_has_one_share() -> None:
    with pytest.raises(AccountingError, match="Expected shares"):
        replace(PLAN, max_colluding=None)


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_the_fine_step_is_the_plans(numerics: Any) -> None:
    fine = Grid(2.0, SIZE).step if numerics == "strict" else sum_step(2.0, SIZE)
    assert shared(numerics=numerics).fine == fine


@given(
    noise=st.floats(1e-3, 1e3),
    clip=st.floats(1e-6, 1e6),
    shares=st.integers(1, 1000),
    size=st.sampled_from([1, 200, SIZE, 25 * 10**6]),
)
def test_shares_have_the_noise_of_one_site_and_steps_fit_it(
    noise: float, clip: float, shares: int, size: int
) -> None:
    grid = SharedGrid(noise, clip, "default", shares, size)
    exact = (Fraction(noise) * Fraction(clip) / Fraction(grid.fine)) ** 2
    for k in {1, 2, shares}:
        found = Fraction(grid.deviation(k)) ** 2 * k
        assert exact <= found <= exact * (1 + Fraction(2) ** -48)
    coarse = grid.deviation(shares) * grid.fine / grid.step
    assert LEAST_DEVIATION <= coarse < 2 * LEAST_DEVIATION
    assert grid.step == 2**grid.shift * grid.fine


def test_alone_it_is_the_local_deviation() -> None:
    grid = shared()
    assert grid.deviation(shares_of(2, 1)) == deviation(1.5, 2.0, grid.fine)


def test_more_shares_never_make_coarser_steps() -> None:
    shifts = [shared(shares=shares).shift for shares in range(1, 200)]
    assert shifts == sorted(shifts, reverse=True) and len(set(shifts)) > 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"noise_multiplier": 1e-9}, "noise_multiplier"),
        ({"noise_multiplier": 1e8}, "noise_multiplier"),
        ({"shares": 1001}, "shares"),
    ],
)
def test_noise_that_cannot_be_divided_is_refused(changes: Any, named: str) -> None:
    with pytest.raises(AccountingError, match=named):
        shared(**changes)


def test_sums_of_nothing_are_refused() -> None:
    with pytest.raises(AccountingError, match="size"):
        shared_grid(PLAN, 0)


@given(
    sums=st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=40),
    noise=st.sampled_from([1.2e-6, 3e-3, 1.0, 5e3]),
    shares=st.integers(1, 3),
)
def test_a_share_is_the_rounding_of_exact_numbers(
    sums: list[int], noise: float, shares: int
) -> None:
    """⌊x + N'/2^a⌋ with x = (S + ½)/2^a, or S, where N = ⌊Y' + ½⌋ takes the half with it."""
    grid = SharedGrid(noise, 2.0, "default", 3, 1000)
    drawn = rounded_gaussian(len(sums), grid.deviation(shares), InsecureRandomness(1))
    found = add_share(whole(*sums), grid, shares, InsecureRandomness(1))
    for value, n, z in zip(sums, drawn.tolist(), found.tolist(), strict=True):
        x = Fraction(2 * value + 1, 2 ** (grid.shift + 1)) if grid.shift else Fraction(value)
        # Anywhere in the range of real Y' that round to n, the same integer comes out.
        for y in (Fraction(2 * n - 1, 2), Fraction(n), Fraction(2**60 * n + 2**59 - 1, 2**60)):
            assert z == math.floor(x + y / 2**grid.shift + Fraction(1, 2))


def test_small_noise_has_no_coarse_steps() -> None:
    assert SharedGrid(1.2e-6, 2.0, "default", 3, 1000).shift == 0 < shared().shift


def test_a_share_is_drawn_in_parts_and_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_share, "_BLOCK", 1000)
    total = np.zeros(2500, dtype=np.int64)
    found = add_share(total, shared(), 3, InsecureRandomness(1))
    assert found is total
    assert accepts(found[-400:], shared().deviation(3) / 2 ** shared().shift)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    total = np.zeros(4_000_000, dtype=np.int64)
    tracemalloc.start()
    add_share(total, shared(), 3, InsecureRandomness(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20 * 8 + 8_000_000


def sum_of_shares(members: int, max_colluding: int, grid: SharedGrid) -> np.ndarray:
    """What a set adds up to, whose sums are 7, −7, 7, … steps, less these; in units of C."""
    total = np.zeros(SIZE)
    for site in range(members):
        own = np.full(SIZE, (-1) ** site * 7, dtype=np.int64)
        total += add_share(own, grid, shares_of(members, max_colluding), SystemCsprng())
    return total * grid.step - (members % 2) * 7 * grid.fine


@pytest.mark.parametrize(("members", "max_colluding"), [(4, 0), (4, 1), (10, 4), (3, 2), (2, 5)])
def test_a_sum_has_the_noise_that_its_set_was_promised(members: int, max_colluding: int) -> None:
    grid = shared(max_colluding=max_colluding, shares=shares_of(members, max_colluding))
    noise = sum_of_shares(members, max_colluding, grid)
    found = total_deviation(grid, members, max_colluding)
    assert accepts(noise, found) and not accepts(noise, found * 2 / 3)
    assert abs(noise.mean()) < 6 * found / SIZE**0.5  # the offset: floors alone go down by a half
    # Whoever does not collude has all the noise that was paid for, together.
    assert found * math.sqrt(shares_of(members, max_colluding) / members) >= 3.0


def test_if_nobody_colludes_the_sum_has_the_noise_of_one() -> None:
    grid = shared(max_colluding=0, shares=8)
    assert total_deviation(grid, 8, 0) == pytest.approx(3.0, rel=0.003)
    assert total_deviation(grid, 8, 0) > 3.0


def test_the_noise_of_a_smaller_set_is_divided_less() -> None:
    """A set that lost a member has all the noise again: shares are drawn for the set as it is."""
    grid = shared()
    found = [total_deviation(grid, u, 1) / math.sqrt(u / shares_of(u, 1)) for u in (1, 2, 3, 4)]
    assert found == pytest.approx([3.0] * 4, rel=0.01)


@pytest.mark.parametrize(("s", "by_hand"), [(2.0, 2e-2), (3.0, 6e-24), (4.0, 6e-54)])
def test_what_two_honest_sites_add_to_delta(s: float, by_hand: float) -> None:
    """P = 25 million, T = 400, ε = 8: in steps of half the noise it would be noticed."""
    log = _log_added(400 * 25 * 10**6, 8.0, 2, log_total_variation(2, s))
    assert math.exp(log) == pytest.approx(by_hand, rel=0.2)


@pytest.mark.parametrize("shares", [1, 2, 3, 50, 1000])
def test_a_plan_adds_nothing_that_is_noticed(shares: int) -> None:
    plan = replace(PLAN, steps=400, shares=shares)
    found = log_added_delta(plan, 25 * 10**6, 8.0)
    assert found < -45 * math.log(10)
    check_added_delta(plan, 25 * 10**6, 8.0, 1e-5)
    assert found >= math.log(400 * 25 * 10**6) + 8.0 + LOG_SAMPLER_ERROR  # which is in it


def test_the_most_shares_are_the_worst() -> None:
    """Sets of fewer members, k = 2 … shares, are covered by what is added for all."""
    grid = shared(shares=40)
    coarse = [grid.deviation(k) / 2**grid.shift for k in range(2, 41)]
    found = [log_total_variation(k, s) for k, s in zip(range(2, 41), coarse, strict=True)]
    assert found == sorted(found)


def test_a_claim_alone_rests_on_the_sampler_only() -> None:
    found = log_added_delta(PLAN, SIZE, 50.0, alone=True)
    assert found == pytest.approx(math.log((1 + math.exp(50.0)) * 3 * SIZE) + LOG_SAMPLER_ERROR)


@pytest.mark.parametrize("epsilon", [783.0, 27_500.0, 45_200.0])
def test_a_claim_alone_of_many_sites_is_taken(epsilon: float) -> None:
    """27,500 is what a thousand sites leave, one of which may collude (ε = 8, 60 rounds of 0.1)."""
    check_added_delta(PLAN, SIZE, epsilon, 1e-5, alone=True)


@pytest.mark.parametrize("epsilon", [46_000.0, 1e6, math.inf])
def test_an_epsilon_that_would_be_noticed_is_refused(epsilon: float) -> None:
    for alone in (False, True):
        with pytest.raises(AccountingError, match="delta=1e-05"):
            check_added_delta(PLAN, SIZE, epsilon, 1e-5, alone=alone)


def test_too_coarse_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_share, "LEAST_DEVIATION", 2.0)
    plan = replace(PLAN, shares=2, steps=400)
    assert shared_grid(plan, SIZE).deviation(2) / 2 ** shared_grid(plan, SIZE).shift < 2.2
    with pytest.raises(AccountingError, match="to add at most"):
        check_added_delta(plan, SIZE, 8.0, 1e-5)


@pytest.mark.parametrize(
    ("members", "shares", "units", "bits"),
    [(4, 3, 160.0, 16), (10, 6, 800.0, 16), (50, 26, 20_000.0, 32), (4, 4, 0.0, 16)],
)
def test_a_sum_fits_its_bits(members: int, shares: int, units: float, bits: int) -> None:
    grid = shared(shares=shares)
    assert bits_for(units, grid, members) == bits
    # Every unit of a batch that is six deviations too large in one value, with nine of noise.
    noise = 9 * total_deviation(grid, members - shares + 1, members - shares) / grid.step
    batch = (units + 6 * units**0.5 + 6) * 2.0 / grid.step
    assert batch + noise + members < 2 ** (bits - 1)


def test_more_units_need_more_bits_and_at_last_too_many() -> None:
    assert [bits_for(units, shared(), 4) for units in (10.0, 1e4, 1e6, 1e8)] == [16, 32, 32, 32]
    with pytest.raises(AccountingError, match="32 bits"):
        bits_for(1e10, shared(), 4)


@pytest.mark.parametrize(("members", "units"), [(2, 1.0), (4, -1.0), (4, math.nan)])
def test_bits_are_for_sets_that_can_be(members: int, units: float) -> None:
    with pytest.raises(AccountingError, match="units"):
        bits_for(units, shared(), members)
