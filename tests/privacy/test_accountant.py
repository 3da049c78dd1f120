from __future__ import annotations

import math
import warnings

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
from fedpriv.privacy import accountant
from fedpriv.privacy.accountant import ACCOUNTANT, Event, calibrate_noise, epsilon_upper
from fedpriv.privacy.rdp import epsilon_from_rdp, rdp

DELTA = 1e-5
rates = st.floats(-4, 0).map(lambda x: 10**x)
sigmas = st.floats(-0.4, 1).map(lambda x: 10**x)
counts = st.integers(1, 300)
quick = settings(max_examples=15, deadline=None)


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_lies_between_the_bounds_at_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    events = [
        Event(10 ** rng.uniform(-3, 0), 10 ** rng.uniform(-0.3, 1), int(10 ** rng.uniform(0, 2.5)))
        for _ in range(rng.integers(1, 3))
    ]
    between_the_oracles(events, 10 ** rng.uniform(-8, -3), width=5e-4)


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


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 1.0), (0.3, 0.3), (0.999, 0.5), (0.1, 0.05)])
def test_mean_of_the_loss(q: float, sigma: float) -> None:
    grid = accountant.domain.Domain(-2e3, 2e3, 2)
    x = np.linspace(-45 * sigma, 1 + 45 * sigma, 2_000_001)
    loss = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / 2 / sigma**2)
    for add in (False, True):
        density = norm.pdf(x, 0, sigma)
        if not add:
            density = (1 - q) * density + q * norm.pdf(x, 1, sigma)
        expected = np.trapezoid(loss * density, x) * (-1 if add else 1)
        mean = accountant._TruncatedLoss(q, sigma, grid, add=add).mean()
        assert mean == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("add", [False, True])
def test_composition_keeps_the_mean(add: bool) -> None:
    """Cells of a coarse grid are off by a part of their width, once for every step."""
    events = (Event(0.1, 0.5, 40), Event(0.2, 0.4, 11))
    grid, _, _ = accountant._grid(events, DELTA, 100.0, 8)
    losses = [
        accountant._TruncatedLoss(event.sample_rate, event.noise_multiplier, grid, add=add)
        for event in events
    ]
    expected = sum(loss.mean() * event.count for loss, event in zip(losses, events, strict=True))
    composed = accountant._compose(events, grid, add=add)
    assert composed.pmf.sum() == pytest.approx(1, abs=1e-12)
    assert float(composed.domain.ts() @ composed.pmf) == pytest.approx(expected, abs=1e-6)
    assert abs(composed.domain.shifts()) > 1e-3


def test_add_is_computed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were add the larger direction, it would be the one reported."""
    event = (Event(0.1, 1.0, 10),)
    remove = epsilon_upper(event, DELTA)
    composed = accountant._composed
    add = composed(event, DELTA, remove, add=True)
    assert 0 < add < 0.8 * remove
    monkeypatch.setattr(
        accountant, "_composed", lambda *args, add, **rest: composed(*args, add=not add, **rest)
    )
    accountant._epsilon.cache_clear()
    try:
        assert epsilon_upper(event, DELTA) == pytest.approx(remove, rel=0.01)
    finally:
        accountant._epsilon.cache_clear()


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
    ("epsilon", "delta", "q", "steps"),
    [
        (8, 1e-5, 0.05, 100),
        (3, 1e-5, 0.02, 400),
        (1, 1e-6, 0.01, 100),
        (0.1, 1e-5, 0.01, 100),
        (5, 1e-5, 1.0, 10),
        (300, 1e-5, 0.2, 1000),
        (2, 1e-12, 0.1, 100),
        (1, 0.3, 0.1, 100),
    ],
)
def test_calibration_meets_its_target(epsilon: float, delta: float, q: float, steps: int) -> None:
    sigma = calibrate_noise(epsilon, delta, q, steps)
    spent = epsilon_upper([Event(q, sigma, steps)], delta)
    assert 0.995 * epsilon <= spent <= epsilon
    assert float(f"{sigma:.4g}") == sigma
    assert epsilon_upper([Event(q, 0.99 * sigma, steps)], delta) > epsilon


@settings(max_examples=10, deadline=None)
@given(epsilon=st.floats(-3, 2).map(lambda x: 10**x), q=rates, steps=st.integers(1, 100))
def test_calibration_is_never_above_its_target(epsilon: float, q: float, steps: int) -> None:
    assert epsilon_upper([Event(q, calibrate_noise(epsilon, DELTA, q, steps), steps)], DELTA) <= (
        epsilon
    )


def test_calibration_refuses_what_no_noise_can_reach() -> None:
    with pytest.raises(AccountingError, match=r"epsilon=1e-12 to be reachable"):
        calibrate_noise(1e-12, 1e-9, 1.0, 10**9)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 1e-5, 0.1, 1), "epsilon=0"),
        ((math.inf, 1e-5, 0.1, 1), "epsilon=inf"),
        ((1, 0, 0.1, 1), "delta=0"),
        ((1, 1e-5, 0, 1), "sample_rate=0"),
        ((1, 1e-5, 1.5, 1), "sample_rate=1.5"),
        ((1, 1e-5, 0.1, 0), "steps=0"),
        ((1, 1e-5, 0.1, 1.5), "steps=1.5"),
    ],
)
def test_calibration_refuses(arguments: tuple[float, float, float, int], match: str) -> None:
    with pytest.raises(AccountingError, match=f"Expected {match}"):
        calibrate_noise(*arguments)


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
    assert "prv-accountant 0." in ACCOUNTANT
