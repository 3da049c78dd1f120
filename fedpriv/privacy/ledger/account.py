"""A plan as it stands in a ledger: how many of its slots were paid for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedpriv.privacy.ledger.plan import Plan


@dataclass
class Account:
    """A plan as it stands in a ledger.

    Attributes:
        reserved: the number of slots paid for.
        closed: why no further slot can be paid for: the administrator closed it, or ("lost") the
            ledger was restored from an older copy, so that slots nobody knows of may have been
            used.
    """

    plan: Plan
    reserved: int = 0
    closed: Literal["", "closed", "lost"] = ""

    def charged(self, *, refunds: bool) -> int:
        """Return how many of its slots count, under a rule that `refunds` unreserved ones or not.

        A closed plan that never reserved a slot has released nothing and counts for nothing under
        any rule.
        """
        if self.closed != "closed":
            return self.plan.steps
        return self.reserved if refunds or not self.reserved else self.plan.steps
