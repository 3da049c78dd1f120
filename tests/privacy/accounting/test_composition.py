"""Each source of error of the numerical composition is on the safe side."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from fedpriv.privacy.accounting import composition
from fedpriv.privacy.accounting.composition import Composition
from fedpriv.privacy.accounting.privacy_loss import SubsampledGaussian
from tests.example_counts import examples

DELTA = 1e-5
PLANS = [
    [(SubsampledGaussian(0.01, 1.0), 1000)],
    [(SubsampledGaussian(0.3, 2.0), 20), (SubsampledGaussian(0.02, 0.6), 50)],
    [(SubsampledGaussian(1.0, 3.0), 2)],
]


def epsilon(plan: list[tuple[SubsampledGaussian, int]], delta: float = DELTA) -> float:
    composed = Composition(plan, delta)
    for pair, count in plan:
        composed.add(pair, count)
    return composed.epsilon()


def hockey_stick(pair: SubsampledGaussian, loss: float, *, add: bool) -> float:
    """P(ℓ > loss) − exp(loss) Q(ℓ > loss), of P and Q or of Q and P, by the densities."""
    sigma = pair.noise_multiplier
    x = np.linspace(-40 * sigma, 40 * sigma + 1, 400_001)
    p, q = (
        sum(math.exp(weight) * norm.pdf(x, centre, sigma) for centre, weight in parts)
        for parts in (pair.p, [(0.0, 0.0)])
    )
    if add:
        p, q = q, p
    return float(np.maximum(p - math.exp(loss) * q, 0).sum() * (x[1] - x[0]))


@settings(max_examples=examples(10), deadline=None)
@given(q=st.floats(0.05, 1), sigma=st.floats(0.8, 4), share=st.floats(0, 1))
def test_the_discrete_pair_dominates(q: float, sigma: float, share: float) -> None:
    """As much as the continuous one at every node, more between nodes."""
    pair = SubsampledGaussian(q, sigma)
    composed = Composition([(pair, 1)], DELTA)
    composed._tilt, composed._cell, composed._nodes = 0.0, 0.05, 4096
    for add, tilted in enumerate(composed._discretise(pair)):
        masses = np.fft.irfft(np.exp(tilted.log_spectrum), 4096) * math.exp(tilted.log_moment)
        losses = 0.05 * np.arange(-2048, 2048)
        masses = np.roll(masses, 2048 + tilted.shift)
        for number in (0, 1, 3):
            for at in (0.05 * number, 0.05 * (number + share)):
                discrete = tilted.infinite + float(
                    (masses * np.maximum(1 - np.exp(at - losses), 0)).sum()
                )
                exact = hockey_stick(pair, at, add=bool(add))
                assert discrete >= exact - 1e-9
                if at == 0.05 * number:
                    assert discrete == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("plan", PLANS)
def test_a_coarse_grid_costs_tightness_not_truth(
    plan: list[tuple[SubsampledGaussian, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for looseness, nodes in ((1e-5, 2**16), (1e-3, 1024), (0.1, 64), (1.0, 16)):
        monkeypatch.setattr(composition, "_LOOSENESS", looseness)
        monkeypatch.setattr(composition, "_MIN_NODES", nodes)
        found.append(epsilon(plan))
    assert all(finer <= 1.0001 * coarser for finer, coarser in pairwise(found))
    assert found[1] <= 1.003 * found[0]
    assert found[-1] > 1.02 * found[0]


@pytest.mark.parametrize("plan", PLANS)
def test_a_narrow_window_costs_tightness_not_truth(
    plan: list[tuple[SubsampledGaussian, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "_LOOSENESS", 1e-5)
    found = []
    for share in (1e-5, 1e-3, 0.1, 0.5, 2, 10, 100):
        monkeypatch.setattr(composition, "_SHARE", share)
        found.append(epsilon(plan))
    assert all(finer <= 1.0001 * coarser for finer, coarser in pairwise(found))
    assert found[2] <= 1.002 * found[0] and found[-1] == math.inf


@pytest.mark.parametrize("plan", PLANS)
def test_steps_that_outgrow_the_window_wrap_around_and_are_counted(
    plan: list[tuple[SubsampledGaussian, int]],
) -> None:
    composed, taken = Composition(plan, DELTA), 0
    for factor in (1, 3, 6, 10, 20):
        for pair, count in plan:
            composed.add(pair, (factor - taken) * count)
        taken = factor
        assert composed.epsilon() >= 0.998 * epsilon([(pair, factor * n) for pair, n in plan])


def test_rounding_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = PLANS[0]
    exact = epsilon(plan)
    monkeypatch.setattr(composition, "_ULPS", 1e12)
    assert epsilon(plan) > 1.01 * exact


def test_what_rounding_may_take_is_taken_from_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = Composition(PLANS[0], DELTA)
    composed.add(*PLANS[0][0])
    found = []
    for delta, allowed in ((DELTA, DELTA / 2), (DELTA / 2, 0.0)):
        composed._delta = delta
        monkeypatch.setattr(
            composed, "_allowance", lambda *of, allowed=allowed: np.full(np.shape(of[-1]), allowed)
        )
        found.append(composed.epsilon())
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_small_deltas_need_no_long_floats() -> None:
    """Of a Gaussian mechanism, known exactly (Balle and Wang 2018, Theorem 8)."""
    for delta in (1e-5, 1e-13, 1e-40):
        found, mu = epsilon([(SubsampledGaussian(1.0, 2.0), 1)], delta), 0.5
        log_a = norm.logcdf(mu / 2 - found / mu)
        log_b = found + norm.logcdf(-found / mu - mu / 2)
        log_delta = log_a + math.log1p(-math.exp(log_b - log_a))
        assert math.log(delta) * 1.005 <= log_delta <= math.log(delta)


@pytest.mark.parametrize(("q", "sigma"), [(0.05, 1.0), (1e-4, 0.7)])
def test_tiny_deltas_of_8_steps(q: float, sigma: float) -> None:
    """By rounding every loss down or up and convolving directly, which keeps all digits."""
    pair, h, delta = SubsampledGaussian(q, sigma), 1e-3, 1e-13
    low, high = (math.floor(loss / h) for loss in pair.span(8.5))
    p, _ = pair.masses(h * np.arange(low, high + 1))
    bounds = []
    for masses, infinite, first in ((p[:-1], 0.0, low - 1), (p[:-1], p[-1], low)):
        for _ in range(3):
            masses, first = np.convolve(masses, masses), 2 * first
        losses = h * (first + np.arange(len(masses)))

        def excess(at: float, losses=losses, masses=masses, infinite=infinite) -> float:  # type: ignore[no-untyped-def]
            above = losses > at
            return float(masses[above] @ -np.expm1(at - losses[above])) + 8 * infinite - delta

        bounds.append(brentq(excess, 0, losses[-1]))
    found = epsilon([(pair, 8)], delta)
    assert bounds[0] <= found <= bounds[1]
    assert bounds[1] - bounds[0] < 0.02 * found


def test_the_larger_direction_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = Composition(PLANS[0], DELTA)
    composed.add(*PLANS[0][0])
    remove, add = (composed._epsilon(direction) for direction in composed._directions)
    assert 0 < add < 0.95 * remove
    assert composed.epsilon() == remove
    composed._directions = composed._directions[::-1]
    assert composed.epsilon() == remove


def test_order_and_grouping_change_nothing() -> None:
    pairs = [SubsampledGaussian(0.05, 1.0 + i / 10) for i in range(5)]
    plan = [(pair, 20) for pair in pairs]
    composed = Composition(plan, DELTA)
    for _ in range(20):
        for pair in reversed(pairs):
            composed.add(pair)
    assert composed.epsilon() == pytest.approx(epsilon(plan), rel=1e-9)


def test_long_double_where_rounding_would_be_felt() -> None:
    """Rare steps and a tiny δ: 0.092 by the pessimistic estimate of dp-accounting."""
    plan = [
        (SubsampledGaussian(3.366842143511793e-05, 6.508927234580811), 10843),
        (SubsampledGaussian(0.0020824773792907426, 1.9694633508626451), 132),
        (SubsampledGaussian(0.0001214017871540479, 0.9956053412205605), 10),
    ]
    composed = Composition(plan, 3.4307666064034624e-12)
    assert composed._dtype is np.longdouble
    assert Composition(PLANS[0], DELTA)._dtype is np.float64
    if np.finfo(np.longdouble).eps < 1e-18:
        assert epsilon(plan, 3.4307666064034624e-12) <= 0.092 + 0.01
