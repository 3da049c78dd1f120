"""Bounds on ε by two worlds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from fedpriv_audit.two_worlds import clopper_pearson, epsilon_lower

DELTA = 0.01


def test_the_bound_is_right_where_it_is_known() -> None:
    """Of two Gaussians one deviation apart, and of worlds that are alike, or always differ."""
    rng = np.random.default_rng(0)
    outside = rng.normal(size=40_000)
    assert 0.8 < epsilon_lower(outside + 1, outside, DELTA)[0] < 2.6  # δ = 0.01 is at ε = 2.55
    assert epsilon_lower(rng.normal(size=4000), rng.normal(size=4000), DELTA)[0] < 0.3
    assert epsilon_lower(np.ones(4000), np.zeros(4000), DELTA)[0] > 6


def test_either_side_of_a_threshold_may_tell() -> None:
    """A record that is always seen when it is there, and one that is missed when it isn't."""
    rng = np.random.default_rng(1)
    often = np.where(rng.random(4000) < 0.5, 1.0, 0.0)
    high, _ = epsilon_lower(often, np.zeros(4000), 0.0)
    low, _ = epsilon_lower(np.zeros(4000), -often, 0.0)
    assert high > 4
    assert low > 4


def test_it_is_wrong_no_more_often_than_it_says() -> None:
    """Randomised response at ε = 1: a bound above 1 comes in at most 5% of all audits."""
    rng, right = np.random.default_rng(2), np.e / (1 + np.e)
    wrong = 0
    for _ in range(200):
        inside = (rng.random(400) < right).astype(float)
        outside = (rng.random(400) > right).astype(float)
        wrong += epsilon_lower(inside, outside, 0.0)[0] > 1
    assert wrong <= 17  # 10 are expected at most; more than 17 with a chance of 1%


@pytest.mark.parametrize(("hits", "trials"), [(0, 10), (3, 10), (10, 10), (47, 900)])
def test_clopper_pearson_as_scipy_has_it(hits: int, trials: int) -> None:
    found = binomtest(hits, trials).proportion_ci(0.9, "exact")
    assert clopper_pearson(hits, trials, 0.05) == pytest.approx((found.low, found.high))
