"""A plan as it stands in a ledger: which of its slots were paid for, and what they asked for."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from fedpriv.errors import AccountingError, BudgetError, shown
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.accounting.filter import rounded_up
from fedpriv.privacy.accounting.rdp import epsilon_from_rdp
from fedpriv.privacy.ledger.plan import Plan


@dataclass(frozen=True, order=True)
class SlotChoice:
    """What a slot of an adaptive plan asks for, relative to the plan.

    Attributes:
        noise: σ_t / σ, positive and finite; less than 1 costs more than a slot as planned.
        rate: q_t / q, in (0, 1].

    Raises:
        AccountingError: one is no float. Whether they are in range, `Account.check` says.

    Privacy:
        Public numbers, chosen by anybody from whatever was released before; what a slot asks for
        is what its reservation pays and what its release is made with.
    """

    noise: float = 1.0
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not (type(self.noise) is float and type(self.rate) is float):
            raise AccountingError(
                f"Expected noise={shown(self.noise)} and rate={shown(self.rate)} to be numbers with"
                " a decimal point."
            )

    def event(self, plan: Plan) -> Event:
        """Return a slot of a plan as it was asked for.

        Raises:
            AccountingError: as `Account.check`, for a choice that is out of range.
        """
        found = plan.filter
        return plan.event(1) if found is None else found.event(self.noise, self.rate)


AS_PLANNED = SlotChoice()


@dataclass
class Account:
    """A plan as it stands in a ledger.

    Attributes:
        reserved: the number of slots paid for.
        closed: no further slot can be: the administrator closed it, or ("lost") the ledger was
            restored from an older copy, so that slots nobody knows of may have been used.
        choices: how many of these slots asked for what, in an adaptive plan.
        debited: the exact amount that took of the Rényi budget of an adaptive plan.
    """

    plan: Plan
    reserved: int = 0
    closed: Literal["", "closed", "lost"] = ""
    choices: Counter[SlotChoice] = field(default_factory=Counter)
    debited: Fraction = Fraction(0)

    def charged(self, *, refunds: bool) -> int:
        """Return how many of its slots count, under a rule that `refunds` unreserved ones or not.

        A closed plan that never reserved a slot has released nothing and counts for nothing under
        any rule.
        """
        if self.closed != "closed":
            return self.plan.steps
        return self.reserved if refunds or not self.reserved else self.plan.steps

    @property
    def kept(self) -> float | None:
        """What a filter keeps of a closed adaptive plan: the debits. None: whatever it charged."""
        return self.kept_if_closed if self.closed == "closed" else None

    @property
    def kept_if_closed(self) -> float | None:
        """The same, if the plan is closed now."""
        return None if self.plan.order is None else rounded_up(self.debited)

    def check(self, choice: SlotChoice, slots: int = 1, tolerance: float = 0.0) -> None:
        """Check that so many more slots may be reserved, each for `choice`.

        Args:
            tolerance: share of the budget; for rows that were accepted by another arithmetic.

        Raises:
            AccountingError: the plan is not adaptive, and something else than it was chosen; or the
                noise is not positive and finite, or the rate above the plan's.
            BudgetError: it is more than what is left of the plan's Rényi budget.

        Privacy:
            Decided by public numbers, before anything is sampled.
        """
        found = self.plan.filter
        if found is None:
            if choice != AS_PLANNED:
                raise AccountingError(
                    f"Job {self.plan.job!r} is not adaptive: expected its slots as planned, got"
                    f" {choice}. Propose it with a filter, or leave noise and rate at 1."
                )
            return
        debit = found.debit(choice.noise, choice.rate)
        left = Fraction(found.budget) - self.debited
        most = left + Fraction(found.budget) * Fraction(tolerance)
        if math.isinf(debit) or Fraction(debit) * slots > most:
            raise BudgetError(
                f"Job {self.plan.job!r}: noise {choice.noise:g} and rate {choice.rate:g} times the"
                f" plan's would take {slots} × {debit:.6g} of its Rényi budget at order"
                f" {found.order}, and {float(left):.6g} of {found.budget:.6g} is left. Ask for more"
                " noise or a lower rate."
            )

    def take(self, choice: SlotChoice) -> None:
        """Count one more reserved slot."""
        self.reserved += 1
        if self.plan.filter is not None:
            self.choices[choice] += 1
            self.debited += Fraction(self.plan.filter.debit(choice.noise, choice.rate))

    def epsilon_debited(self, delta: float) -> float:
        """Return ε at δ of all debits, at the order of an adaptive plan; infinite for others."""
        if self.plan.order is None:
            return math.inf
        curve = np.array([rounded_up(self.debited)])
        return epsilon_from_rdp(curve, delta, (self.plan.order,))[0]
