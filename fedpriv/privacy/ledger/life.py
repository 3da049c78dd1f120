"""Compute a job's share of a budget for life, and how many more jobs like it a ledger accepts.

A share is a part of all that the ledger's rule has, in the rule's own currency. Under `rdp` that is
a Rényi divergence at one order: equal jobs take equal shares, and shares add up. An ε does neither.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fedpriv.errors import BudgetError
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import Amounts
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.life import MOST, Life

MANY = 100  # so many jobs, or more


def shares(
    terms: Terms, used: Amounts, plan: Plan, takes: Amounts | None = None
) -> tuple[float, float]:
    """Return the shares of a budget for life: of all jobs with this one, and of this one.

    Args:
        used, takes: see `life_with`.
    """
    cost = takes or tuple(a for claim in terms.claims for a in claim.cost(plan, plan.steps))
    added = (0.0,) * len(cost) if takes is not None else cost
    limit = (amount for claim in terms.claims for amount in claim.limit)
    whole = zip(used, added, cost, limit, strict=True)
    return max(((one + new) / most, own / most) for one, new, own, most in whole)


@lru_cache(MANY)
def life_with(terms: Terms, used: Amounts, plan: Plan, takes: Amounts | None = None) -> Life:
    """Return what a plan takes of a ledger's budget for life. More like it are tried one by one.

    Args:
        used: what all accepted plans take, as `History.used`.
        takes: what this plan takes, as `History.used_by`, if it is accepted; None if it only asks.

    Privacy:
        Public numbers of a ledger's rows.
    """
    tried, more = History("terms", terms.as_row()), 0 if takes is not None else -1
    tried.take("restored", {"rows": 1, "heads": [""], "lost": [*used]})
    taken, job = shares(terms, used, plan, takes)
    try:
        while more < MANY:
            again = replace(plan, job=f"{plan.job} {more}")
            tried.allocated_with(again)
            tried.take("plan", again.as_row())
            more += 1
    except BudgetError:
        pass
    return Life(taken=min(taken, MOST), job=min(job, MOST), more=more)
