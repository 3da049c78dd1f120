"""Describe a budget for life in words: what a job takes, what is left, what it means for a unit.

Privacy
    Made from a ledger's public rows, and from what its administrator typed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from decimal import ROUND_CEILING, Decimal
from typing import Any

from fedpriv.privacy.ledger.life import MANY, life_with, shares
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import Amounts, rule_of
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.life import Life


def life_in(account: Mapping[str, Any], plan: Plan) -> Life:
    """Return what a plan takes of a ledger's budget. The ledger has accepted it, or may do so.

    Args:
        account: the ledger's figures, as `History.figures` returns them.
    """
    return life_with(*_asked(account, plan))


def share_in(account: Mapping[str, Any], plan: Plan) -> str:
    """Return only the share of the budget, which is quick to compute for many jobs."""
    return share(shares(*_asked(account, plan))[1])


def _asked(account: Mapping[str, Any], plan: Plan) -> tuple[Terms, Amounts, Plan, Amounts | None]:
    row = next((row for row in account["plans"] if row["job"] == plan.job), None)
    takes = None if row is None else tuple(row["takes"])
    return terms_in(account), tuple(account["used"]), plan, takes


def terms_in(account: Mapping[str, Any]) -> Terms:
    """Return the terms of a ledger from its `History.figures`."""
    found = {field.name: account[field.name] for field in fields(Terms)}
    return Terms(**{**found, "rule": rule_of(account["rule"])})


def in_words(life: Life, *, asks: bool = False) -> str:
    """Say what a job takes, or would take if it `asks`, and how many more like it fit."""
    if life.more < 0:
        return f"It does not fit: it is {share(life.job)} of the budget for life, and less is left."
    takes, all_take, fit = ("would take", "would have taken", "would fit") if asks else (
        "takes", "have taken", "fit"
    )  # fmt: skip
    more = {0: "no", MANY: f"{MANY} or more"}.get(life.more, f"{life.more}")
    together = f". All jobs together {all_take} {share(life.taken)}" * (life.taken != life.job)
    own = f"It {takes} {share(life.job)} of the budget for life"
    return f"{own}{together}, and {more} more like it {fit}."


def share(of: float) -> str:
    """Write a share in per cent, with three significant digits."""
    return f"{100 * of:.3g}%"


def for_one(unit: str, delta: float, epsilons: Mapping[str, float]) -> str:
    """Say what figures mean for one unit: how often a guess that it is in the data is right.

    Args:
        epsilons: words that say what a figure is about → the ε.
    """
    whose = "a record is" if unit == "record" else f"somebody's records (one {unit}) are"
    right = ", and ".join(f"{right_at_most(e, delta)} {name}" for name, e in epsilons.items())
    return (
        f"A guess whether {whose} in the data is right in at most {right}; that of a coin is right"
        " in 50%."
    )


def right_at_most(epsilon: float, delta: float) -> str:
    """Return the share of right guesses that ε and δ allow if chances are even; rounded up.

    Source:
        Kairouz, Oh and Viswanath 2015, "The Composition Theorem for Differential Privacy":
        (e^ε + δ) / (1 + e^ε).
    """
    wrong = 100 * (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    digits = min(4, max(1, math.ceil(-math.log10(wrong))))
    right = Decimal(100 - wrong).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING)
    return f"{right.normalize():f}%"
