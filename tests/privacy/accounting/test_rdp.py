from __future__ import annotations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.rdp import ORDERS, epsilon_from_rdp, rdp

rates = st.floats(-6, 0).map(lambda x: 10**x)
sigmas = st.floats(-1, 2).map(lambda x: 10**x)


def oracle(q: float, sigma: float, steps: int) -> RdpAccountant:
    accountant = RdpAccountant(orders=list(ORDERS))
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    return accountant


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        (0.01, 1, 1, 1e-5),
        (0.01, 1, 1000, 1e-5),
        (0.05, 1, 100, 1e-5),
        (0.1, 0.5, 10, 1e-5),
        (1, 1, 10, 1e-5),
        (0.2, 0.5, 1000, 1e-6),
        (0.001, 4, 100_000, 1e-9),
        (0.9, 20, 3, 0.1),
        (0.5, 50, 1, 0.3),
    ],
)
def test_agrees_with_dp_accounting(q: float, sigma: float, steps: int, delta: float) -> None:
    theirs, order = oracle(q, sigma, steps).get_epsilon_and_optimal_order(delta)
    ours, our_order = epsilon_from_rdp(rdp(q, sigma) * steps, delta)
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
    assert theirs == 0 or our_order == order


@settings(max_examples=25, deadline=None)
@given(q=rates, sigma=sigmas)
def test_curve_agrees_with_dp_accounting(q: float, sigma: float) -> None:
    theirs = np.array(oracle(q, sigma, 1)._rdp)
    # The oracle takes the logarithm of a sum near 1, which costs it the digits of small values.
    np.testing.assert_allclose(rdp(q, sigma), theirs, rtol=1e-9, atol=1e-11)


def test_small_values_keep_their_digits() -> None:
    q, sigma = 1e-7, 3.0
    assert rdp(q, sigma, [2])[0] == pytest.approx(q**2 * np.expm1(1 / sigma**2), rel=1e-12)


@given(q=rates, sigma=sigmas)
def test_curve_grows_with_the_order_and_stays_below_the_gaussian(q: float, sigma: float) -> None:
    curve = rdp(q, sigma)
    assert (np.diff(curve) >= -1e-12 * curve[1:]).all()
    assert (curve <= rdp(1.0, sigma) * (1 + 1e-12)).all()


@given(q=rates, sigma=sigmas)
def test_more_noise_and_a_lower_rate_cost_less(q: float, sigma: float) -> None:
    curve = rdp(q, sigma)
    assert (rdp(q, sigma * 1.01) < curve).all()
    assert (rdp(q / 1.01, sigma) < curve).all()


@pytest.mark.parametrize("order", [2, 3, 8, 16, 33, 64])
def test_one_order_agrees_with_dp_accounting(order: int) -> None:
    accountant = RdpAccountant(orders=[order])
    curve = np.zeros(1)
    for q, sigma, steps in ((0.05, 1.0, 100), (0.3, 4.0, 20)):
        step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
        curve += steps * rdp(q, sigma, (order,))
    ours, our_order = epsilon_from_rdp(curve, 1e-5, (order,))
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-8)
    assert our_order == order


def test_no_sampling_costs_nothing_and_no_noise_costs_everything() -> None:
    assert (rdp(0.0, 1.0) == 0).all()
    assert np.isinf(rdp(0.1, 0.0)).all()
    assert np.isinf(rdp(0.1, 1e-200)).all()
    assert epsilon_from_rdp(rdp(0.1, 0.0), 1e-5)[0] == np.inf
    assert epsilon_from_rdp(np.zeros(len(ORDERS)), 1e-5)[0] == 0


@pytest.mark.parametrize(
    ("q", "sigma", "orders", "match"),
    [
        (1.1, 1, (2,), "sample_rate=1.1"),
        (float("nan"), 1, (2,), "sample_rate=nan"),
        (0.1, -1, (2,), "noise_multiplier=-1"),
        (0.1, float("inf"), (2,), "noise_multiplier=inf"),
        (0.1, 1, (1,), "orders"),
        (0.1, 1, (2.5,), "orders"),
    ],
)
def test_refuses(q: float, sigma: float, orders: tuple[int, ...], match: str) -> None:
    with pytest.raises(AccountingError, match=match):
        rdp(q, sigma, orders)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, float("nan")])
def test_refuses_delta(delta: float) -> None:
    with pytest.raises(AccountingError, match="delta"):
        epsilon_from_rdp(np.ones(len(ORDERS)), delta)


def test_refuses_a_curve_it_cannot_read() -> None:
    with pytest.raises(AccountingError, match="curve"):
        epsilon_from_rdp(np.ones(3), 1e-5)
    with pytest.raises(AccountingError, match="curve"):
        epsilon_from_rdp(np.full(len(ORDERS), np.nan), 1e-5)
