"""What a job commits a site to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, get_args

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.usual import MAX_NOISE, MAX_STEPS, Numerics


@dataclass(frozen=True)
class Plan:
    """`steps` slots of one mechanism, committed together.

    Attributes:
        job: id of the job, unique for this ledger.
        noise_multiplier: standard deviation of the noise over the sensitivity.
        proposal: digest of all that was proposed, so that nothing of it changes afterwards.
        numerics: ``strict`` when sums and noise are exact integers on a grid that the plan fixes.
        max_colluding: t, how many sites of a set may collude before the noise of the others is
            not all that was paid for; None where this site adds all of its noise itself.
        shares: max(1, N − t) of a roster of N sites, the most shares that the noise of this site
            is ever divided into.

    Raises:
        AccountingError: a value of the wrong type, or out of its range.
    """

    job: str
    method: str
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    proposal: str
    numerics: Numerics = "default"
    max_colluding: int | None = None
    shares: int = 1

    def __post_init__(self) -> None:
        texts = (self.job, self.method, self.proposal)
        numbers = (self.sample_rate, self.noise_multiplier, self.clip_norm)
        checks = (
            ("texts", all(type(text) is str for text in texts)),
            ("numbers", all(type(number) in (int, float) for number in numbers)),
            ("steps", type(self.steps) is int and 1 <= self.steps <= MAX_STEPS),
            ("sample_rate", 0 < self.sample_rate <= 1),
            ("noise_multiplier", 0 < self.noise_multiplier <= MAX_NOISE),
            ("clip_norm", 0 < self.clip_norm <= sys.float_info.max),
            ("numerics", self.numerics in get_args(Numerics)),
            ("max_colluding", self.max_colluding is None or _is_count(self.max_colluding, 0)),
            ("shares", _is_count(self.shares, 1) and (self.is_shared or self.shares == 1)),
        )
        for name, holds in checks:
            if not holds:
                raise AccountingError(f"Expected {name} in range, got {self!r}.")

    @property
    def is_shared(self) -> bool:
        """Whether each site of a set adds a share of the noise, for a sum that hides its part."""
        return self.max_colluding is not None

    def event(self, steps: int | None = None) -> Event:
        """All of its steps, or as many as are given, as the accountant is charged for them."""
        return Event(
            self.sample_rate, self.noise_multiplier, self.steps if steps is None else steps
        )


@dataclass
class Account:
    """A plan as it stands in a ledger.

    Attributes:
        reserved: slots that were paid for.
        closed: no further slot can be: the administrator closed it, or ("lost") the ledger was
            restored from an older copy, so that slots nobody knows of may have been used.
    """

    plan: Plan
    reserved: int = 0
    closed: Literal["", "closed", "lost"] = ""

    def charged(self, *, refunds: bool) -> int:
        """How many of its slots count, under a rule that `refunds` unreserved ones or not.

        A closed plan of which no slot was ever reserved has released nothing and counts for
        nothing under any rule.
        """
        if self.closed != "closed":
            return self.plan.steps
        return self.reserved if refunds or not self.reserved else self.plan.steps


def _is_count(value: object, least: int) -> bool:
    return type(value) is int and value >= least
