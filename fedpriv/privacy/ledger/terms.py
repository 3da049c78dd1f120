"""Define what a ledger is about: fixed when it is made."""

from __future__ import annotations

import secrets
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedpriv.errors import LedgerError, shown
from fedpriv.privacy.ledger.claims import Claim
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule
from fedpriv.privacy.usual import MAX_UNITS

RELATION = "add-or-remove-one-unit"


@dataclass(frozen=True)
class Terms:
    """What a ledger is about; fixed when it is created, but for what `administration.grow` changes.

    Attributes:
        dataset_id: random, never a hash of the data (that would tell who is in it).
        declared_size: units in the population, as the administrator states it.
        unit: ``record`` or the id column whose rows are one unit.
        max_records_per_unit: how many records of a unit enter its vector.
        delta: δ of the (ε, δ) claim, below 1 / declared_size.
        budget: ε for the whole life of the ledger.
        simulated: whether a simulation made it; the network engine refuses such a ledger.
        private: False when sampling or noise came from a seed (public data only).
        witnessed: a witness outside the backup is told of every row, and has to be named.
        rule: how plans become one claim; see `fedpriv.privacy.ledger.rules`.
        budget_alone: ε for life if nobody else's noise counts: the budget of its people if all
            other sites of a secure sum work with the server. None: no such sum is paid for.

    Raises:
        LedgerError: terms that promise nothing, or that no plan could meet.
    """

    dataset_id: str
    declared_size: int
    unit: str
    max_records_per_unit: int
    delta: float
    budget: float
    simulated: bool
    private: bool = True
    witnessed: bool = False
    rule: Rule = field(default_factory=PlanRule)
    relation: Literal["add-or-remove-one-unit"] = "add-or-remove-one-unit"
    budget_alone: float | None = None

    def __post_init__(self) -> None:
        sizes = (self.declared_size, self.max_records_per_unit)
        flags = (self.simulated, self.private, self.witnessed)
        if not all(type(text) is str for text in (self.dataset_id, self.unit)):
            raise LedgerError("Expected dataset id and unit to be texts.")
        if not all(type(size) is int and 1 <= size <= MAX_UNITS for size in sizes):
            raise LedgerError(
                f"Expected sizes={shown(sizes)} to be integers from 1 to {MAX_UNITS:g}."
            )
        if not all(type(flag) is bool for flag in flags) or self.relation != RELATION:
            raise LedgerError(f"Expected flags={flags} and relation={self.relation!r} as known.")
        if not 0 < self.budget <= sys.float_info.max:
            raise LedgerError(f"Expected budget={shown(self.budget)} > 0 and finite.")
        if self.budget_alone is not None:
            self._check_alone(self.budget_alone)
        if not 0 < self.delta < 1 / self.declared_size:
            raise LedgerError(
                f"Expected 0 < delta={self.delta} < 1 / declared size {self.declared_size}."
            )
        for claim in self.claims:
            claim.rule.limit(claim.budget, self.delta)

    def _check_alone(self, budget: float) -> None:
        """Raise LedgerError if there can be no second claim with that budget."""
        number = type(budget) in (int, float)
        if not (number and self.budget <= budget <= sys.float_info.max):
            raise LedgerError(
                f"Expected budget_alone={shown(budget)} to be finite and at least the budget"
                f" {self.budget:g}: with nobody to trust, nothing costs less."
            )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claim with trust and, with a second budget, the claim alone."""
        trusting = Claim(self.rule, self.budget, self.delta)
        if self.budget_alone is None:
            return (trusting,)
        rule = self.rule.alone if isinstance(self.rule, RdpRule) else self.rule
        return trusting, Claim(rule, self.budget_alone, self.delta, alone=True)

    def as_row(self) -> dict[str, Any]:
        """Return the fields as a ledger keeps them; with one budget, as older ledgers have them."""
        fields = asdict(self)
        if self.budget_alone is None:
            del fields["budget_alone"]
        if fields["rule"].get("order_alone", 0) is None:
            del fields["rule"]["order_alone"]
        return fields

    @property
    def plan_delta(self) -> float:
        """The δ at which one plan's noise is calibrated."""
        return getattr(self.rule, "delta_per_plan", self.delta)


def new_dataset_id() -> str:
    """Make a random name for a population: it tells nothing about the records."""
    return secrets.token_hex(16)
