"""Define a slot of a plan that is paid for, to be shown to the code that releases."""

from __future__ import annotations

from typing import Never

from fedpriv.errors import LedgerError, SlotError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.terms import Terms


class Reservation:
    """A slot that is paid for: the only thing that buys a release, and it buys one.

    Made by `Ledger.reserve`. A slot that is asked for again before its release, as after a crash,
    gives another one. `Ledger.release` bounds that: it takes one reply a slot.

    Attributes:
        ledger: the dataset id of the ledger that paid.
        private: whether randomness that anyone could repeat is not good enough.
    """

    def __init__(self, *values: Never, **named: Never) -> None:
        raise LedgerError("A reservation is made by Ledger.reserve, which pays for it.")

    ledger: str
    private: bool
    plan: Plan
    slot: int
    request_digest: str
    _used: bool

    @classmethod
    def _of(cls, terms: Terms, plan: Plan, slot: int, request_digest: str) -> Reservation:
        made = object.__new__(cls)
        made.ledger, made.private = terms.dataset_id, terms.private
        made.plan, made.slot, made.request_digest = plan, slot, request_digest
        made._used = False
        return made

    @property
    def event(self) -> Event:
        """The rate and the noise that were paid for; nothing else may run in this slot."""
        return self.plan.event(1)

    def use(self) -> Plan:
        """Return the plan that was paid for, once.

        Raises:
            SlotError: it has bought a release before.
        """
        if self._used:
            raise SlotError(f"Slot {self.slot} of job {self.plan.job!r} has bought its release.")
        self._used = True
        return self.plan
