"""A job's share of a budget for life: shares add up, and what is said to fit is accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpriv.errors import BudgetError
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.life import MANY, life_with
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.privacy.ledger.terms import Terms

PLAN = Plan("job", "dp-lora", 0.05, 0.8835, 1.0, 30, "sha256:0")  # ε = 3 at δ = 1e-5
RULES: tuple[Rule, ...] = (RdpRule.best(12.0, 1e-5), SumRule.of(1e-5, 3), PlanRule())


def terms(rule: Rule, budget: float = 12.0, alone: float | None = None) -> Terms:
    return Terms("0" * 32, 250, "record", 1, 1e-5, budget, False, rule=rule, budget_alone=alone)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.name))
def test_as_many_jobs_fit_as_it_says_and_no_more(rule: Rule) -> None:
    history = History("terms", terms(rule).as_row())
    asks = life_with(history.terms, history.used, PLAN)
    taken = 0.0
    for number in range(asks.more + 1):
        plan = replace(PLAN, job=f"job {number}")
        history.allocated_with(plan)
        history.take("plan", plan.as_row())
        life = life_with(history.terms, history.used, plan, history.used_by([plan.job]))
        taken += life.job
        assert life.more == asks.more - number
        assert life.job == asks.job
        assert life.taken == pytest.approx(taken)
    with pytest.raises(BudgetError):
        history.allocated_with(PLAN)
    assert life_with(history.terms, history.used, PLAN).more == -1


def test_a_budget_of_twelve_holds_twenty_equal_jobs_of_three() -> None:
    asks = life_with(terms(RULES[0]), (0.0,), PLAN)
    assert (asks.more, round(100 * asks.job, 2)) == (19, 4.99)


def test_the_claim_with_least_left_decides_and_many_are_not_counted() -> None:
    shared = replace(PLAN, max_colluding=1, shares=4, noise_multiplier=4.0)
    with_trust = life_with(terms(RULES[0]), (0.0,), replace(PLAN, noise_multiplier=4.0))
    assert with_trust.more == MANY
    alone = life_with(terms(RULES[0], alone=12.0), (0.0, 0.0), shared)
    assert alone.job > 4 * with_trust.job
