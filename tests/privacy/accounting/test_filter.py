from __future__ import annotations

import math
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.filter import (
    RdpFilter,
    best_order,
    calibrate_filtered,
    rounded_up,
)
from fedpriv.privacy.accounting.rdp import ORDERS, epsilon_from_rdp, rdp
from tests.example_counts import examples

DELTA = 1e-5
rates = st.floats(-4, 0).map(lambda x: 10**x)
sigmas = st.floats(-0.5, 1.5).map(lambda x: 10**x)
filters = st.builds(RdpFilter, st.sampled_from(ORDERS), rates, sigmas, st.integers(1, 2000))
relative = st.floats(-2, 0).map(lambda x: 10**x)


@settings(max_examples=examples(100), deadline=None)
@given(filter=filters, share=st.floats(-4, 2).map(lambda x: 10**x), rate=relative)
def test_the_noise_for_a_debit_costs_no_more_and_hardly_less(
    filter: RdpFilter, share: float, rate: float
) -> None:
    wanted = filter.debit() * share
    noise = filter.noise_for(wanted, rate)
    assert filter.debit(noise, rate) <= wanted
    assert filter.debit(noise * (1 - 1e-9), rate) > wanted


@settings(max_examples=examples(100), deadline=None)
@given(filter=filters, noise=st.floats(0.2, 20), rate=relative)
def test_the_noise_for_what_a_noise_costs_is_that_noise(
    filter: RdpFilter, noise: float, rate: float
) -> None:
    found = filter.noise_for(filter.debit(noise, rate), rate)
    assert found <= noise * (1 + 1e-12)
    assert filter.debit(found, rate) <= filter.debit(noise, rate)


@settings(max_examples=examples(100), deadline=None)
@given(filter=filters)
def test_the_budget_is_that_of_all_slots_and_holds_them(filter: RdpFilter) -> None:
    step = rdp(filter.sample_rate, filter.noise_multiplier, (filter.order,))[0]
    assert filter.budget == pytest.approx(filter.steps * step, rel=1e-11)
    assert step < filter.debit()
    assert Fraction(filter.debit()) * filter.steps <= Fraction(filter.budget)


@settings(max_examples=examples(50), deadline=None)
@given(filter=filters, noise=st.floats(0.5, 4), rate=relative)
def test_more_noise_and_a_lower_rate_cost_less(
    filter: RdpFilter, noise: float, rate: float
) -> None:
    assert filter.debit(noise * 1.01, rate) < filter.debit(noise, rate)
    assert filter.debit(noise, rate / 1.01) < filter.debit(noise, rate)


@settings(max_examples=examples(25), deadline=None)
@given(
    order=st.sampled_from([2, 3, 8, 16, 33, 64]),
    q=st.floats(0.01, 1),
    sigma=st.floats(0.5, 8),
    steps=st.integers(1, 500),
)
def test_agrees_with_dp_accounting_at_the_order(
    order: int, q: float, sigma: float, steps: int
) -> None:
    accountant = RdpAccountant(orders=[order])
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps))
    filter = RdpFilter(order, q, sigma, steps)
    assert filter.budget == pytest.approx(float(accountant._rdp[0]), rel=1e-8)
    assert filter.epsilon(DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-8)


@settings(max_examples=examples(15), deadline=None)
@given(data=st.data(), filter=filters)
def test_a_filter_costs_no_less_than_the_accountant_says_of_what_ran(
    data: st.DataObject, filter: RdpFilter
) -> None:
    left, events = Fraction(filter.budget), []
    for _ in range(min(filter.steps, 5)):
        noise, rate = data.draw(st.floats(0.3, 5)), data.draw(relative)
        debit = filter.debit(noise, rate)
        if debit <= left:
            left -= Fraction(debit)
            events.append(filter.event(noise, rate))
    assert epsilon_upper(events, DELTA) <= filter.epsilon(DELTA)


@settings(max_examples=examples(25), deadline=None)
@given(epsilon=st.floats(-1, 1.5).map(lambda x: 10**x), q=rates, steps=st.integers(1, 1000))
def test_a_filtered_calibration_meets_its_target_and_is_tight(
    epsilon: float, q: float, steps: int
) -> None:
    found = calibrate_filtered(epsilon, DELTA, q, steps)
    sigma, order = found.noise_multiplier, found.order
    assert found == RdpFilter(order, q, sigma, steps)
    assert found.epsilon(DELTA) <= epsilon
    assert order == best_order(q, sigma, steps, DELTA)
    assert float(f"{sigma:.4g}") == sigma
    if sigma > 1e-3:
        less = min(RdpFilter(a, q, 0.998 * sigma, steps).epsilon(DELTA) for a in ORDERS)
        assert less > epsilon


@pytest.mark.parametrize("order", [8, 20, 48])
def test_at_an_order_that_is_given_it_is_kept_and_no_cheaper(order: int) -> None:
    best = calibrate_filtered(3.0, DELTA, 0.05, 100)
    found = calibrate_filtered(3.0, DELTA, 0.05, 100, order)
    sigma = found.noise_multiplier
    assert found.order == order
    assert sigma >= best.noise_multiplier
    assert RdpFilter(order, 0.05, sigma, 100).epsilon(DELTA) <= 3.0
    assert RdpFilter(order, 0.05, 0.998 * sigma, 100).epsilon(DELTA) > 3.0


def test_the_best_order_costs_least() -> None:
    order = best_order(0.05, 1.2, 100, DELTA)
    costs = {a: RdpFilter(a, 0.05, 1.2, 100).epsilon(DELTA) for a in ORDERS}
    assert costs[order] == min(costs.values())
    assert costs[order] == pytest.approx(epsilon_from_rdp(rdp(0.05, 1.2) * 100, DELTA)[0])
    assert costs[order] > epsilon_upper([Event(0.05, 1.2, 100)], DELTA)


def test_what_no_noise_reaches_is_refused() -> None:
    with pytest.raises(AccountingError, match="at order 2 with"):
        calibrate_filtered(1.0, 1e-9, 0.05, 100, 2)
    with pytest.raises(AccountingError, match=r"reachable with delta=1e-30"):
        calibrate_filtered(0.01, 1e-30, 0.05, 100)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((1, 0.1, 1.0, 1), "order=1"),
        ((2.0, 0.1, 1.0, 1), "order=2.0"),
        ((513, 0.1, 1.0, 1), "order=513"),
        ((True, 0.1, 1.0, 1), "order=True"),
        ((8, 0.0, 1.0, 1), "sample_rate=0.0"),
        ((8, 1.1, 1.0, 1), "sample_rate=1.1"),
        ((8, 0.1, 0.0, 1), "noise_multiplier=0.0"),
        ((8, 0.1, math.nan, 1), "noise_multiplier=nan"),
        ((8, 0.1, 2e9, 1), "noise_multiplier=2000000000.0"),
        ((8, 0.1, 1.0, 0), "steps=0"),
        ((8, 0.1, 1.0, 1.5), "steps=1.5"),
    ],
)
def test_refuses_a_filter(arguments: tuple[int, float, float, int], match: str) -> None:
    with pytest.raises(AccountingError, match=f"Expected {match}"):
        RdpFilter(*arguments)


@pytest.mark.parametrize(
    ("noise", "rate", "match"),
    [
        (0.0, 1.0, "noise=0"),
        (-1.0, 1.0, "noise=-1"),
        (math.nan, 1.0, "noise=nan"),
        (math.inf, 1.0, "noise=inf"),
        (2e10, 1.0, "noise=20000000000.0"),
        (1e-323, 1.0, "noise=1e-323"),
        (1.0, 0.0, "rate=0"),
        (1.0, 1.0000001, "rate=1.0000001"),
        (1.0, math.nan, "rate=nan"),
        (1.0, 5e-324, "rate=5e-324"),
    ],
)
def test_refuses_a_slot(noise: float, rate: float, match: str) -> None:
    with pytest.raises(AccountingError, match=f"Expected {match}"):
        RdpFilter(8, 0.1, 0.1, 10).debit(noise, rate)


@pytest.mark.parametrize("debit", [0.0, -1.0, math.nan, math.inf, 1e-30])
def test_refuses_a_debit_that_no_noise_has(debit: float) -> None:
    with pytest.raises(AccountingError, match="Expected debit="):
        RdpFilter(8, 0.1, 1.0, 10).noise_for(debit)


def test_rounding_up_never_loses() -> None:
    assert rounded_up(Fraction(1, 3)) > Fraction(1, 3)
    assert rounded_up(Fraction(1, 2)) == 0.5
    assert math.isinf(rounded_up(Fraction(10) ** 400))
