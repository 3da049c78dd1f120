"""The two claims of a ledger: with trust in the other sites of a secure sum, and alone.

In a secure sum each site adds a share of the noise. *With trust* that at most so many of them work
with the server, the noise of the sum protects a site's people, and its plan costs what its noise
multiplier says. *Alone*, whatever everybody else does, its own share is all the noise there is. A
ledger that pays for such sums has a budget for each, under one rule, and each plan is debited to
both. A plan whose noise a site adds all by itself costs the same under both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from fedpriv.errors import BudgetError
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.ledger.account import Account
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import Amounts, Rule

ALONE = "if all other sites of a secure sum worked with the server"


@dataclass(frozen=True)
class Claim:
    """A claim that a rule makes of plans, with a budget of its own.

    Attributes:
        budget: ε for life.
        alone: whether nobody else's noise counts.

    Privacy:
        Public numbers of plans only.
    """

    rule: Rule
    budget: float
    delta: float
    alone: bool = False

    @property
    def limit(self) -> Amounts:
        """All that the claim may take, in the rule's currency."""
        return self.rule.limit(self.budget, self.delta)

    def cost(self, plan: Plan, steps: int) -> Amounts:
        """Return what a number of charged steps of a plan takes of this claim."""
        return self.rule.cost(self._charged(plan), steps, self.delta)

    def check(self, plan: Plan) -> None:
        """Check that a plan by itself can be held.

        Raises:
            BudgetError: it can't. The error has the rule's words.
        """
        charged = self._charged(plan)
        try:
            self.rule.check(charged, self.budget, self.delta)
            if not all(map(math.isfinite, self.cost(plan, plan.steps))):
                raise BudgetError(
                    f"Noise of {charged.noise_multiplier:g} is so little that no bound on its cost"
                    " is finite. Use more noise."
                )
        except BudgetError as error:
            if plan.is_shared:
                raise BudgetError(f"{self.words}: {error}") from None
            raise

    def allocated(self, used: Amounts) -> float:
        """Return ε of the plans accepted so far, as the rule charges them."""
        return self.rule.allocated(used, self.delta)

    def committed(self, used: Amounts) -> float:
        """Return ε for life, an upper bound."""
        return max(self.rule.claim(used, self.budget, self.delta), self.allocated(used))

    def spent(self, accounts: Iterable[Account]) -> float:
        """Return ε of the reserved slots."""
        held = [account for account in accounts if account.reserved]
        events = [self._charged(account.plan).event(account.reserved) for account in held]
        return epsilon_upper(events, self.delta)

    @property
    def words(self) -> str:
        """The name of this claim, one of the two."""
        return f"Alone, {ALONE}" if self.alone else "With trust in the other sites"

    def _charged(self, plan: Plan) -> Plan:
        return plan.alone if self.alone else plan


def check_second_budget(plan: Plan, budget_alone: float | None) -> None:
    """Check that a ledger may hold a plan whose noise is shared.

    Raises:
        BudgetError: it has no budget for what such a plan costs when nobody else's noise counts.
    """
    if plan.is_shared and budget_alone is None:
        raise BudgetError(
            f"Job {plan.job!r} is a secure sum, in which each site adds a share of the noise, and"
            f" this ledger has no budget for what that costs {ALONE}. It is fixed when a ledger is"
            " made: --epsilon-alone of fedpriv ledger init, budget.epsilon_alone in a site's file."
        )
