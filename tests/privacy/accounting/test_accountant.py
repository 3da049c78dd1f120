from __future__ import annotations

import math
import warnings

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import (
    ACCOUNTANT,
    Event,
    OnlineAccountant,
    epsilon_of_group,
    epsilon_upper,
)
from fedpriv.privacy.accounting.rdp import epsilon_from_rdp, rdp
from tests.example_counts import examples, new_seeds

DELTA = 1e-5
rates = st.floats(-4, 0).map(lambda x: 10**x)
sigmas = st.floats(-0.4, 1).map(lambda x: 10**x)
counts = st.integers(1, 300)
quick = settings(max_examples=examples(15), deadline=None)


def slack(epsilon: float) -> float:
    """How far above the truth the upper bound may lie."""
    return max(0.01 * epsilon, 0.01)


def oracle(events: list[Event], delta: float, *, pessimistic: bool, width: float = 1e-3) -> float:
    """ε of dp-accounting's PLD, the larger of both directions."""
    total = None
    for event in events:
        step = pld.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sample_rate,
            value_discretization_interval=width,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        ).self_compose(event.count)
        total = step if total is None else total.compose(step)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


def between_the_oracles(events: list[Event], delta: float, width: float = 1e-3) -> None:
    ours = epsilon_upper(events, delta)
    assert ours >= oracle(events, delta, pessimistic=False, width=width)
    upper = oracle(events, delta, pessimistic=True, width=width)
    assert ours <= upper + slack(upper)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "published"),
    [
        (0.01, 1, 1, 0.1995),
        (0.01, 1, 1000, 1.828),
        (0.05, 1, 100, 3.502),
        (0.1, 0.5, 10, 12.261),
        (1, 1, 10, 17.857),
    ],
)
def test_published_values(q: float, sigma: float, steps: int, published: float) -> None:
    ours = epsilon_upper([Event(q, sigma, steps)], DELTA)
    assert published - 5e-4 <= ours <= published + slack(published)


@pytest.mark.parametrize(
    ("events", "delta"),
    [
        ([Event(0.01, 0.8, 300)], 1e-5),
        ([Event(0.3, 2.0, 20)], 1e-6),
        ([Event(0.9, 1.5, 5)], 1e-4),
        ([Event(0.02, 1.0, 100), Event(0.1, 2.0, 10), Event(1.0, 8.0, 3)], 1e-5),
        ([Event(0.2, 0.5, 1000)], 1e-5),  # where prv-accountant raises
    ],
)
def test_lies_between_the_bounds_of_another_accountant(events: list[Event], delta: float) -> None:
    between_the_oracles(events, delta, width=1e-2 if events[0].count == 1000 else 1e-3)


def some_plan(rng: np.random.Generator) -> tuple[list[Event], float]:
    """Rates of 10⁻⁶ to 1, up to 10⁵ steps, δ down to 10⁻⁹; ε of 0.01 to 100.

    At a smaller δ the rounding of the other accountant's transforms is what it finds: an optimistic
    estimate of 23.2 and a pessimistic one of 14.3 for one and the same plan.
    """
    while True:
        events = [
            Event(10 ** rng.uniform(-6, 0), 10 ** rng.uniform(-0.6, 1.3), int(10**power))
            for power in rng.uniform(0, 5, rng.integers(1, 4))
        ]
        delta = 10 ** rng.uniform(-9, -2)
        if 0.01 <= epsilon_upper(events, delta) <= 100:
            return events, delta


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(80))
def test_lies_between_the_bounds_at_random(seed: int) -> None:
    check_a_random_plan(seed)


@pytest.mark.slow
def test_lies_between_the_bounds_for_new_seeds() -> None:
    for seed in new_seeds(10):
        check_a_random_plan(seed)


def check_a_random_plan(seed: int) -> None:
    events, delta = some_plan(np.random.default_rng(seed))
    ours, steps = epsilon_upper(events, delta), sum(event.count for event in events)
    width = max(min(ours / math.sqrt(steps) / 20, 1e-2), ours / 3e5)
    upper = oracle(events, delta, pessimistic=True, width=width)
    assert ours <= upper + slack(upper)
    try:
        lower = oracle(events, delta, pessimistic=False, width=width)
    except OverflowError:  # of the other accountant
        lower = oracle(events, delta, pessimistic=False, width=10 * width)
    assert ours >= lower


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 500), (0.5, 2.0, 50)])
def test_agrees_with_the_package_where_that_works(q: float, sigma: float, steps: int) -> None:
    eps_error = 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mechanism = PoissonSubsampledGaussianMechanism(q, sigma)
        package = PRVAccountant([mechanism], eps_error, DELTA / 1000, [steps])
        lower, estimate, _ = package.compute_epsilon(DELTA, [steps])
    ours = epsilon_upper([Event(q, sigma, steps)], DELTA)
    assert lower <= estimate <= ours <= estimate + slack(estimate)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.2, 0.5, 1000), (0.3, 0.3, 20)])
def test_beats_the_renyi_bound_where_the_package_raises(q: float, sigma: float, steps: int) -> None:
    mechanism = PoissonSubsampledGaussianMechanism(q, sigma)
    with pytest.raises(RuntimeError, match="mean"):
        PRVAccountant([mechanism], 0.1, DELTA / 1000, [steps])
    ours = epsilon_upper([Event(q, sigma, steps)], DELTA)
    assert ours < 0.6 * epsilon_from_rdp(rdp(q, sigma) * steps, DELTA)[0]


@pytest.mark.parametrize("mu", [0.02, 0.5, 3.0, 30.0])
def test_gaussian_without_subsampling_is_known_exactly(mu: float) -> None:
    def excess(epsilon: float) -> float:
        """Balle and Wang 2018, Theorem 8."""
        below = norm.logcdf(-epsilon / mu - mu / 2)
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + below) - DELTA)

    exact = brentq(excess, 0, 1000)
    events = [Event(1.0, 2 / mu, 1), Event(1.0, 2 / math.sqrt(3) / mu, 1)]  # 1/4 + 3/4 of mu²
    assert exact <= epsilon_upper(events, DELTA) <= exact + slack(exact)


@pytest.mark.parametrize(
    ("sigma", "delta"),
    [
        (0.03258585532673799, 1.5311763228757005e-12),  # losses beyond float64's smallest tails
        (0.08944101483731806, 4.935766529849979e-46),  # a spectrum that comes near 0, once
        (0.3, 1e-30),
        (2.0, 1e-13),
    ],
)
def test_one_gaussian_at_the_ends_of_the_arithmetic(sigma: float, delta: float) -> None:
    """Balle and Wang 2018, Theorem 8, at 60 digits: δ at the ε that is reported."""
    with mpmath.workdps(60):
        mu, epsilon = 1 / mpmath.mpf(sigma), mpmath.mpf(epsilon_upper([Event(1, sigma, 1)], delta))
        above = mpmath.ncdf(mu / 2 - epsilon / mu)
        assert above - mpmath.exp(epsilon) * mpmath.ncdf(-epsilon / mu - mu / 2) <= delta


def test_steps_that_are_rarer_than_delta_cost_no_more_than_delta() -> None:
    assert epsilon_upper([Event(1e-9, 0.01, 1)], DELTA) == 0
    plan = Event(1e-3, 10.0, 10**5)
    alone = epsilon_upper([plan], DELTA)
    assert alone <= epsilon_upper([plan, Event(1e-9, 0.01, 1)], DELTA) <= 1.001 * alone
    assert epsilon_upper([plan, Event(1e-5, 0.01, 1)], DELTA) > 100


@pytest.mark.parametrize("plan", [[], [Event(4.57e-4, 14.8, 3749)]])
def test_steps_far_outside_the_plan_need_no_more_memory(plan: list[Event]) -> None:
    online = OnlineAccountant(plan, DELTA)
    for event in (Event(0.43, 0.62, 4), Event(0.1, 0.01, 2)):
        online.add(event)
        exact = oracle([Event(0.43, 0.62, 4)], DELTA, pessimistic=False)
        assert exact <= online.epsilon() < math.inf


def test_nothing_costs_nothing() -> None:
    assert epsilon_upper([], DELTA) == 0
    assert epsilon_upper([Event(0.1, 0.0, 0)], DELTA) == 0


def test_no_noise_is_unbounded() -> None:
    assert epsilon_upper([Event(0.1, 1.0, 5), Event(0.1, 0.0, 1)], DELTA) == math.inf
    assert epsilon_upper([Event(1.0, 0.0, 1)], DELTA) == math.inf
    assert epsilon_upper([Event(0.1, 1e-200, 1)], DELTA) == math.inf


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (Event(0.01, 1e-3, 1), DELTA),
        (Event(1.0, 1e-3, 10**6), DELTA),
        (Event(1e-12, 1.0, 1), DELTA),
        (Event(1e-9, 0.1, 10**9), DELTA),
        (Event(1.0, 1e6, 1), DELTA),
        (Event(1 - 2**-53, 0.3, 100), DELTA),
        (Event(0.01, 1.0, 1000), 1e-9),
        (Event(0.01, 1.0, 1000), 1e-13),
        (Event(0.01, 1.0, 1000), 1e-300),
        (Event(0.01, 1.0, 1000), 0.999),
        (Event(0.5, 0.02, 7), DELTA),
        (Event(0.5, 1e-99, 10**6), DELTA),
        (Event(1.0, 1e-99, 10**6), DELTA),
    ],
)
def test_extremes_are_finite_and_below_the_renyi_bound(event: Event, delta: float) -> None:
    ours = epsilon_upper([event], delta)
    curve = rdp(event.sample_rate, event.noise_multiplier) * event.count
    assert 0 <= ours <= epsilon_from_rdp(curve, delta)[0] * (1 + 1e-12) < math.inf


@pytest.mark.parametrize("delta", [1e-5, 1e-13])
def test_the_rounds_so_far_at_any_time(delta: float) -> None:
    """One grid for the plan, and never less than what a grid of their own gives."""
    plan = [Event(0.02, 1.0, 400), Event(0.05, 2.0, 100)]
    online = OnlineAccountant(plan, delta)
    assert online.epsilon() == 0
    taken: list[Event] = []
    for event in [Event(0.02, 1.0, 1), Event(0.05, 2.0, 20), Event(0.02, 1.0, 179)] * 2:
        online.add(event)
        taken.append(event)
        alone = epsilon_upper(taken, delta)
        assert 0.995 * alone <= online.epsilon() <= alone + slack(alone)


def test_steps_outside_the_plan_are_charged_too() -> None:
    online = OnlineAccountant([Event(0.01, 2.0, 10)], DELTA)
    online.add(Event(0.3, 0.7, 50))
    assert online.epsilon() >= oracle([Event(0.3, 0.7, 50)], DELTA, pessimistic=False)


@pytest.mark.slow
def test_500_noise_levels() -> None:
    plan = [Event(0.02, 1 + 0.002 * i, 1) for i in range(500)]
    online = OnlineAccountant(plan, DELTA)
    for event in plan:
        online.add(event)
    same = [Event(0.02, 1.0, 500), Event(0.02, 1.998, 500)]
    assert epsilon_upper(same[1:], DELTA) < online.epsilon() < epsilon_upper(same[:1], DELTA)
    assert online.epsilon() == pytest.approx(epsilon_upper(plan, DELTA), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("q", "sigma", "steps", "units"), [(0.01, 2.0, 300, 3), (0.2, 3.0, 20, 2)])
def test_a_person_with_several_units(q: float, sigma: float, steps: int, units: int) -> None:
    """Against another implementation of mixtures of Gaussians."""
    weights = [math.comb(units, k) * q**k * (1 - q) ** (units - k) for k in range(units + 1)]
    bounds = [
        pld.from_mixture_gaussian_mechanism(
            sigma, range(units + 1), weights, pessimistic, value_discretization_interval=1e-3
        )
        .self_compose(steps)
        .get_epsilon_for_delta(DELTA)
        for pessimistic in (False, True)
    ]
    ours = epsilon_of_group(Event(q, sigma, steps), DELTA, units)
    assert bounds[0] <= ours <= bounds[1] + slack(bounds[1])


def test_a_group_of_one_is_one() -> None:
    event = Event(0.05, 1.2, 60)
    assert epsilon_of_group(event, DELTA, 1) == epsilon_upper([event], DELTA)
    assert epsilon_of_group(Event(1.0, 3.0, 4), DELTA, 2) == pytest.approx(
        epsilon_upper([Event(1.0, 1.5, 4)], DELTA), rel=1e-3
    )


@quick
@given(q=rates, sigma=sigmas, count=counts, factor=st.floats(1.05, 3))
def test_monotone(q: float, sigma: float, count: int, factor: float) -> None:
    least = epsilon_upper([Event(q, sigma, count)], DELTA)
    for dearer in (
        epsilon_upper([Event(q, sigma, math.ceil(count * factor))], DELTA),
        epsilon_upper([Event(min(1.0, q * factor), sigma, count)], DELTA),
        epsilon_upper([Event(q, sigma / factor, count)], DELTA),
        epsilon_upper([Event(q, sigma, count)], DELTA / factor),
    ):
        assert dearer >= least - slack(least)


@quick
@given(q=rates, sigma=sigmas, parts=st.lists(counts, min_size=1, max_size=4))
def test_split_counts_cost_the_same(q: float, sigma: float, parts: list[int]) -> None:
    split = [Event(q, sigma, part) for part in parts]
    assert epsilon_upper(split, DELTA) == epsilon_upper([Event(q, sigma, sum(parts))], DELTA)
    assert epsilon_upper(split[::-1], DELTA) == epsilon_upper(split, DELTA)


@quick
@given(q=rates, sigma=sigmas, count=counts)
def test_nearly_equal_steps_cost_nearly_the_same(q: float, sigma: float, count: int) -> None:
    merged = epsilon_upper([Event(q, sigma, 2 * count)], DELTA)
    apart = epsilon_upper([Event(q, sigma, count), Event(q, sigma * (1 + 1e-9), count)], DELTA)
    assert apart == pytest.approx(merged, rel=0.01, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ((0, 1, 1), "sample_rate=0"),
        ((1.01, 1, 1), "sample_rate=1.01"),
        ((math.nan, 1, 1), "sample_rate=nan"),
        ((0.1, -1, 1), "noise_multiplier=-1"),
        ((0.1, math.inf, 1), "noise_multiplier=inf"),
        ((0.1, math.nan, 1), "noise_multiplier=nan"),
        ((0.1, 1, -1), "count=-1"),
        ((0.1, 1, 1.5), "count=1.5"),
        ((0.1, 1, math.inf), "count=inf"),
        ((0.1, 1, math.nan), "count=nan"),
        ((0.1, 1e154, 1), "noise_multiplier=1e\\+154"),
    ],
)
def test_event_refuses(fields: tuple[float, float, int], match: str) -> None:
    with pytest.raises(AccountingError, match=f"Expected {match}"):
        Event(*fields)


@pytest.mark.parametrize("delta", [0, 1, -1, math.nan])
def test_refuses_delta(delta: float) -> None:
    with pytest.raises(AccountingError, match="Expected delta"):
        epsilon_upper([], delta)


def test_names_itself() -> None:
    assert "PRV" in ACCOUNTANT and "upper bound" in ACCOUNTANT
