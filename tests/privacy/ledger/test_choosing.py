"""What choosing settings costs: as the accountant and a real ledger's account say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import BudgetError, ConfigError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.planning import Planned
from fedpriv.privacy.accounting.planning import plan as solve
from fedpriv.privacy.ledger.choosing import REPEATED, price_choosing
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.life import MANY, shares
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.privacy.ledger.terms import Terms
from tests.example_counts import examples

DELTA = 1e-5


def job(sigma: float, steps: int, rate: float = 0.2) -> Planned:
    return solve(delta=DELTA, sample_rate=rate, noise_multiplier=sigma, steps=steps)


@pytest.mark.parametrize("steps", [1, 30, 101])
def test_prices_are_those_of_as_many_steps(steps: int) -> None:
    found = price_choosing(job(1.2, steps), 4)
    assert found["look"] is not None
    assert (found["trial"]["steps"], found["look"]["steps"]) == (math.ceil(steps / 10), 4)
    for priced, beside in ((found["trial"], steps), (found["look"], steps), (found["repeated"], 0)):
        alone, together = (
            epsilon_upper([Event(0.2, 1.2, count)], DELTA)
            for count in (priced["steps"], priced["steps"] + beside)
        )
        assert (priced["epsilon"], priced["epsilon_with_job"]) == (alone, together)
        assert priced["share"] is None
    assert found["repeated"]["steps"] == REPEATED * steps
    assert price_choosing(job(1.2, steps), None)["look"] is None


@given(sigma=st.floats(0.6, 4), steps=st.integers(1, 60), budget=st.sampled_from([3.0, 8.0, 12.0]))
@settings(deadline=None, max_examples=examples(30))
def test_a_ledger_accepts_as_many_jobs_as_are_said_to_fit(
    sigma: float, steps: int, budget: float
) -> None:
    found = price_choosing(job(sigma, steps), 4, budget)
    rule = RdpRule.best(budget, DELTA)
    terms = Terms("0" * 32, 250, "record", 1, DELTA, budget, False, rule=rule)
    history, plan = History("terms", terms.as_row()), Plan("", "x", 0.2, sigma, 1.0, steps, "d")
    for priced in (found["trial"], found["repeated"]):
        _, share = shares(terms, (0.0,), replace(plan, steps=priced["steps"]))
        assert priced["share"] == pytest.approx(share)
    assert found["job_share"] == pytest.approx(shares(terms, (0.0,), plan)[1])
    accepted = 0
    try:
        while accepted < MANY:
            again = replace(plan, job=f"job {accepted}")
            history.allocated_with(again)
            history.take("plan", again.as_row())
            accepted += 1
    except BudgetError:
        pass
    assert found["jobs"] == accepted


@pytest.mark.parametrize("budget", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_none_is_refused(budget: float) -> None:
    with pytest.raises(ConfigError, match=r"--budget: must be above 0 .* Such as 12"):
        price_choosing(job(1.2, 30), 4, budget)
