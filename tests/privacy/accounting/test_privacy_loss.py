from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from fedpriv.privacy.accounting.privacy_loss import SubsampledGaussian

REACH = 9.0
Q = [(0.0, 0.0)]  # what a step gives without the units
pairs = st.builds(
    SubsampledGaussian,
    st.floats(-4, 0).map(lambda x: 10**x),
    st.floats(0.3, 10),
    st.integers(1, 3),
)


def density(parts: list[tuple[float, float]], sigma: float, x: np.ndarray) -> np.ndarray:
    return sum(np.exp(weight) * norm.pdf(x, centre, sigma) for centre, weight in parts)


@settings(max_examples=50, deadline=None)
@given(pair=pairs)
def test_the_log_ratio_is_of_the_densities_and_increasing(pair: SubsampledGaussian) -> None:
    x = np.linspace(-4 * pair.noise_multiplier, 4 * pair.noise_multiplier + 1, 101)
    ratio = pair.log_ratio(x)
    p, q = (density(parts, pair.noise_multiplier, x) for parts in (pair.p, Q))
    assert ratio == pytest.approx(np.log(p / q), abs=1e-9)
    assert (np.diff(ratio) >= 0).all()


@settings(max_examples=50, deadline=None)
@given(pair=pairs, share=st.floats(0.01, 0.99))
@example(SubsampledGaussian(0.9999999999999994, 0.3125, 1), 0.125)  # all but every unit
def test_output_is_the_inverse(pair: SubsampledGaussian, share: float) -> None:
    low, high = pair.span(REACH)
    loss = np.array([low + share * (high - low)])
    x = pair.output(loss)
    assert pair.log_ratio(x) == pytest.approx(loss, rel=1e-8, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(pair=pairs)
def test_masses_are_those_of_the_intervals(pair: SubsampledGaussian) -> None:
    low, high = pair.span(4.0)
    losses = np.linspace(low, high, 7)[1:-1]
    p, q = pair.masses(losses)
    assert p.sum() == pytest.approx(1) and q.sum() == pytest.approx(1)
    sigma = pair.noise_multiplier
    x = np.linspace(-12 * sigma, pair.units + 12 * sigma, 400_001)
    cell = np.searchsorted(losses, pair.log_ratio(x))
    width = x[1] - x[0]
    for found, parts in ((p, pair.p), (q, Q)):
        expected = np.bincount(cell, density(parts, sigma, x) * width, minlength=len(found))
        assert found == pytest.approx(expected, abs=1e-3)


def test_tails_keep_their_digits() -> None:
    pair = SubsampledGaussian(0.1, 1.0)
    p, q = pair.masses(pair.log_ratio(np.array([-20.0, 20.0])))
    assert q[0] == pytest.approx(norm.cdf(-20), rel=1e-6)
    assert p[-1] == pytest.approx(0.9 * norm.sf(20) + 0.1 * norm.sf(19), rel=1e-6)


def test_log_moments() -> None:
    pair, orders = SubsampledGaussian(0.2, 1.5), np.array([0.5, 2.0, 7.0])
    x = np.linspace(-20, 25, 200_001)
    log_p = np.log(density(pair.p, 1.5, x) * (x[1] - x[0]))
    expected = logsumexp(orders[:, None] * pair.log_ratio(x) + log_p, 1)
    assert pair.log_moments(orders, 10.0) == pytest.approx(expected, rel=1e-3)
