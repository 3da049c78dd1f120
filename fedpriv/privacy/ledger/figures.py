"""Read what an open ledger says of itself: its history, under the lock that writers hold."""

from __future__ import annotations

from typing import Any

from fedpriv.privacy.ledger.chain import Chain
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.plan import Plan


def _of_history(name: str) -> Any:
    """Return a property that reads the property `name` of `History` under the lock."""

    def read(ledger: Figures) -> Any:
        """See `History`."""
        with ledger._chain.lock:
            return getattr(ledger._history, name)

    return property(read, doc=getattr(History, name, read).__doc__)


class Figures:
    """The part of a `Ledger` that only reads. Methods may be called from any thread.

    Privacy:
        Public numbers of the rows; nothing here pays, and nothing is released.
    """

    _chain: Chain
    _history: History
    is_full: bool = _of_history("is_full")
    guarantee: str = _of_history("guarantee")
    numerics: frozenset[str] = _of_history("numerics")
    at_ticks: bool = _of_history("at_ticks")
    epsilon_committed: float = _of_history("epsilon_committed")
    epsilon_allocated: float = _of_history("epsilon_allocated")
    epsilon_spent: float = _of_history("epsilon_spent")
    epsilon_alone_committed: float | None = _of_history("epsilon_alone_committed")
    epsilon_alone_allocated: float | None = _of_history("epsilon_alone_allocated")
    epsilon_alone_spent: float | None = _of_history("epsilon_alone_spent")
    max_colluding: int | None = _of_history("max_colluding")
    distinct: list[tuple[str, str]] = _of_history("distinct")
    grown: bool = _of_history("grown")

    def request_of(self, job: str, slot: int) -> str | None:
        """Return the digest of the request that a slot is reserved for; None if there is none."""
        with self._chain.lock:
            return self._history.requests.get((job, slot))

    @property
    def begun(self) -> bool:
        """Whether a plan was ever accepted."""
        with self._chain.lock:
            return bool(self._history.accounts)

    def figures(self) -> dict[str, Any]:
        """See `History.figures`."""
        with self._chain.lock:
            return self._history.figures()

    def plan(self, job: str) -> Plan | None:
        """Return the plan of a job, if the ledger holds one."""
        with self._chain.lock:
            account = self._history.accounts.get(job)
            return None if account is None else account.plan

    def slots(self, job: str) -> list[tuple[int, bool]]:
        """Return the reserved slots of a job in order, each with whether it was released."""
        with self._chain.lock:
            return self._history.slots(job)
