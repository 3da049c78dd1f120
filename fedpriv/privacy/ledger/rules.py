"""The three rules by which plans become one (ε, δ) for the life of a ledger.

A rule has a currency: what a plan takes of it, and how much there is in all. A plan is
accepted only if what it takes, with all that was taken before, is within the limit, so the
claim is a property of the limit, whoever chose the plans and whatever they had seen by then.

===========  ======================  ==============================  ====================
rule         currency                claim                           closing gives back
===========  ======================  ==============================  ====================
`plan`       one plan for life, ε    ε of that plan at δ             nothing
`rdp`        Rényi ε(α) at one α     the budget at δ                 slots not reserved
`sum`        (Σε, Σδ) of plans       (budget, δ)                     nothing
===========  ======================  ==============================  ====================

A closed plan of which no slot was reserved gives all back under every rule: it released
nothing. Whatever else stopping a job saves may depend on what it released, and only a filter
allows for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from fedpriv.errors import BudgetError, ConfigError, LedgerError, shown
from fedpriv.privacy.accounting.rdp import ORDERS, epsilon_from_rdp, rdp
from fedpriv.privacy.ledger.plan import Plan

Amounts = tuple[float, ...]
MAX_PLANS = 10**6  # plans that share δ
ULP = 1 + 1e-12  # debits are rounded up, so that a sum of roundings never gains


class _Rule:
    """Give the answers that most rules share."""

    refunds = False

    def check(self, plan: Plan, budget: float, delta: float) -> None:
        """Raise BudgetError for a plan that can't be held by itself, whatever else is held."""

    def allocated(self, used: Amounts, delta: float) -> float:
        """Return ε of the plans accepted so far, if all their slots are used."""
        return used[0]

    def claim(self, used: Amounts, budget: float, delta: float) -> float:
        """Return ε for life."""
        return budget


@dataclass(frozen=True)
class PlanRule(_Rule):
    """One plan, whose (q, σ) and number of slots are fixed before its first release."""

    name: Literal["plan"] = "plan"
    guarantee = (
        "the one plan of this ledger in full, whatever the server asked in its slots and whenever"
        " it stopped"
    )

    def limit(self, budget: float, delta: float) -> Amounts:
        return (1.0, budget)

    def cost(self, plan: Plan, steps: int, delta: float) -> Amounts:
        return (1.0, plan.epsilon(delta)) if steps else (0.0, 0.0)

    def check(self, plan: Plan, budget: float, delta: float) -> None:
        epsilon = plan.epsilon(delta)
        if epsilon > budget:
            raise BudgetError(
                f"{plan.steps} steps at rate {plan.sample_rate:g} and noise"
                f" {plan.noise_multiplier:g} cost ε = {epsilon:.3f} at δ = {delta:g}, more than the"
                f" budget {budget:g}. Use more noise or fewer steps."
            )

    def allocated(self, used: Amounts, delta: float) -> float:
        return used[1]

    def claim(self, used: Amounts, budget: float, delta: float) -> float:
        """Return ε for life: that of the accepted plan, or the budget before there is one."""
        return used[1] if used[0] else budget


@dataclass(frozen=True)
class RdpRule(_Rule):
    """A privacy filter: Rényi ε at one fixed order α, debited for each plan before it runs.

    The order is fixed when the ledger is made; plans, their noise and when they stop may
    depend on all that was released before (Feldman and Zrnic 2021, "Individual Privacy
    Accounting via a Rényi Filter", Theorem 4.3).

    Attributes:
        order: α.
        order_alone: α of the filter of the claim alone, whose plans have so much less noise that
            the order that serves the other claim would be many times too dear. None: the same.
    """

    order: int
    order_alone: int | None = None
    name: Literal["rdp"] = "rdp"
    refunds = True
    guarantee = (
        "everything that the filter lets through for life, however jobs were chosen and stopped"
    )

    def __post_init__(self) -> None:
        for order in (self.order, self.order if self.order_alone is None else self.order_alone):
            if order != int(order) or not 2 <= order <= ORDERS[-1]:
                raise LedgerError(
                    f"Expected order={order} to be an integer from 2 to {ORDERS[-1]}."
                )

    @property
    def alone(self) -> RdpRule:
        """The filter of the claim alone; it is fixed as early as the other filter."""
        return self if self.order_alone is None else RdpRule(self.order_alone)

    @classmethod
    def best(cls, budget: float, delta: float) -> RdpRule:
        """Return the rule whose order lets ε buy most of the Gaussian mechanism, ε(α) ∝ α."""
        return cls(max(ORDERS, key=lambda order: _capacity(order, budget, delta) / order))

    def limit(self, budget: float, delta: float) -> Amounts:
        capacity = _capacity(self.order, budget, delta)
        if capacity <= 0:
            raise LedgerError(
                f"At order {self.order} the conversion to δ = {delta:g} alone costs more than the"
                f" budget {budget:g}. Use a higher order, a larger δ or a larger budget."
            )
        return (capacity / ULP,)

    def cost(self, plan: Plan, steps: int, delta: float) -> Amounts:
        step = float(rdp(plan.sample_rate, plan.noise_multiplier, (self.order,))[0])
        return (steps * step * ULP,)

    def allocated(self, used: Amounts, delta: float) -> float:
        if not used[0]:
            return 0.0
        return epsilon_from_rdp(np.array(used), delta, (self.order,))[0]


@dataclass(frozen=True)
class SumRule(_Rule):
    """Basic composition of plans, each accounted for by itself at `delta_per_plan`.

    A sum of (ε, δ) is a filter too: plans may be chosen by what was released, and run by turns
    (Rogers, Roth, Ullman and Vadhan 2016, "Privacy Odometers and Filters"; Haney et al. 2023,
    "Concurrent Composition for Interactive Differential Privacy with Adaptive Privacy-Loss
    Parameters").
    """

    delta_per_plan: float
    name: Literal["sum"] = "sum"
    guarantee = "the sums of ε and of δ over all plans for life, however they were chosen"

    def __post_init__(self) -> None:
        if not 0 < self.delta_per_plan < 1:
            raise LedgerError(f"Expected delta_per_plan={self.delta_per_plan} in (0, 1).")

    @classmethod
    def of(cls, delta: float, plans: int) -> SumRule:
        """Give each of `plans` plans an equal share of δ: together no more than δ, exactly.

        Raises:
            LedgerError: more plans than `MAX_PLANS`.
        """
        if not 1 <= plans <= MAX_PLANS:
            raise LedgerError(f"Expected plans={shown(plans)} to be from 1 to {MAX_PLANS:g}.")
        share = delta / plans
        while Fraction(share) * plans > Fraction(delta):
            share = math.nextafter(share, 0.0)
        return cls(share)

    def limit(self, budget: float, delta: float) -> Amounts:
        if self.delta_per_plan > delta:
            raise LedgerError(
                f"Expected delta_per_plan={self.delta_per_plan:g} <= delta={delta:g}, which all"
                " plans share."
            )
        return (budget, delta)

    def cost(self, plan: Plan, steps: int, delta: float) -> Amounts:
        if not steps:
            return (0.0, 0.0)
        return (plan.epsilon(self.delta_per_plan), self.delta_per_plan)


Rule = PlanRule | RdpRule | SumRule
RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (PlanRule, RdpRule, SumRule)}
OPTIONS: dict[str, tuple[str, ...]] = {"plan": (), "rdp": ("order",), "sum": ("plans",)}


def new_rule(
    name: str,
    given: Mapping[str, Any],
    budget: float,
    delta: float,
    budget_alone: float | None = None,
) -> Rule:
    """Make the rule of a new ledger, as an administrator states it.

    Args:
        budget_alone: the second budget, for which ``rdp`` has the best order, too.
        given: the stated ones of `OPTIONS`. A rule needs all of its own, except the order of
            ``rdp``, for which the best is taken.

    Raises:
        ConfigError: there is no such rule; or an option, which is the error's key, is missing or
            belongs to another rule.
        LedgerError: a value makes no rule.
    """
    if name not in OPTIONS:
        fix = f"Use one of {', '.join(OPTIONS)}."
        raise ConfigError("is no rule of a new ledger", key="rule", value=name, fix=fix)
    for key in given.keys() - set(OPTIONS[name]):
        raise ConfigError(
            f"does not belong to the rule {name!r}", key=key, value=given[key], fix="Leave it out."
        )
    for key in OPTIONS[name]:
        if key not in given and key != "order":
            raise ConfigError(f"is needed by the rule {name!r}", key=key, fix="State it.")
    match name:
        case "rdp":
            order = given["order"] if given else RdpRule.best(budget, delta).order
            second = None if budget_alone is None else RdpRule.best(budget_alone, delta).order
            return RdpRule(order, second)
        case "sum":
            return SumRule.of(delta, given["plans"])
        case _:
            return PlanRule()


def rule_of(fields: dict[str, Any]) -> Rule:
    """Make the rule whose fields `dataclasses.asdict` gave.

    Raises:
        LedgerError, KeyError, TypeError: they are those of no rule.
    """
    return RULES[fields["name"]](**fields)


def _capacity(order: int, budget: float, delta: float) -> float:
    """Return the Rényi ε(α) that converts to `budget` at δ; see `epsilon_from_rdp`."""
    return budget - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)
