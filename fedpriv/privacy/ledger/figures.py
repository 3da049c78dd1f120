"""What an open ledger says of itself: its history, read under the lock that writers hold."""

from __future__ import annotations

from typing import Any

from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.ledger.chain import Chain
from fedpriv.privacy.ledger.history import History
from fedpriv.privacy.ledger.plan import Plan


class Figures:
    """The part of a `Ledger` that only reads. Methods may be called from any thread.

    Privacy:
        Public numbers of the rows; nothing here pays, and nothing is released.
    """

    _chain: Chain
    _history: History

    def request_of(self, job: str, slot: int) -> str | None:
        """The digest of the request that a slot is reserved for; None if it is not."""
        with self._chain.lock:
            return self._history.requests.get((job, slot))

    @property
    def distinct(self) -> list[tuple[str, str]]:
        """See `History`."""
        with self._chain.lock:
            return list(self._history.distinct)

    @property
    def grown(self) -> bool:
        """See `History`."""
        with self._chain.lock:
            return self._history.grown

    @property
    def is_full(self) -> bool:
        """Whether its rule takes no further plan; see `History`."""
        with self._chain.lock:
            return self._history.is_full

    @property
    def begun(self) -> bool:
        """Whether a plan was ever accepted."""
        with self._chain.lock:
            return bool(self._history.accounts)

    @property
    def guarantee(self) -> str:
        """What `epsilon_committed` covers; see `History`."""
        with self._chain.lock:
            return self._history.guarantee

    @property
    def numerics(self) -> frozenset[str]:
        """Of the plans that the claim is about; see `History`."""
        with self._chain.lock:
            return self._history.numerics

    @property
    def at_ticks(self) -> bool:
        """Of all plans that the claim is about; see `History`."""
        with self._chain.lock:
            return self._history.at_ticks

    @property
    def epsilon_committed(self) -> float:
        """The claim for life; see `History`."""
        with self._chain.lock:
            return self._history.epsilon_committed

    @property
    def epsilon_allocated(self) -> float:
        """Of the plans accepted so far; see `History`."""
        with self._chain.lock:
            return self._history.epsilon_allocated

    @property
    def epsilon_spent(self) -> float:
        """Of the reserved slots only; see `History`."""
        with self._chain.lock:
            return self._history.epsilon_spent

    @property
    def epsilon_alone_committed(self) -> float | None:
        """The claim for life if nobody else's noise counts; see `History`."""
        with self._chain.lock:
            return self._history.epsilon_alone_committed

    @property
    def epsilon_alone_allocated(self) -> float | None:
        """Of the plans accepted so far, likewise; see `History`."""
        with self._chain.lock:
            return self._history.epsilon_alone_allocated

    @property
    def epsilon_alone_spent(self) -> float | None:
        """Of the reserved slots only, likewise; see `History`."""
        with self._chain.lock:
            return self._history.epsilon_alone_spent

    @property
    def max_colluding(self) -> int | None:
        """Of the secure sums that the claims are about; see `History`."""
        with self._chain.lock:
            return self._history.max_colluding

    @property
    def spent_events(self) -> list[Event]:
        """The reserved slots as events, one per plan, and of an adaptive one per choice."""
        with self._chain.lock:
            return self._history.spent_events

    def figures(self) -> dict[str, Any]:
        """See `History.figures`."""
        with self._chain.lock:
            return self._history.figures()

    def plan(self, job: str) -> Plan | None:
        """The plan of a job, if the ledger holds one."""
        with self._chain.lock:
            account = self._history.accounts.get(job)
            return None if account is None else account.plan

    def slots(self, job: str) -> list[tuple[int, bool]]:
        """Reserved slots of a job in order, each with whether it was released."""
        with self._chain.lock:
            return self._history.slots(job)

    def slot_events(self, job: str) -> list[tuple[int, Event]]:
        """Reserved slots of a job that has a plan, each with the event that was paid for it."""
        with self._chain.lock:
            return self._history.slot_events(job)

    def filter_use(self, job: str) -> dict[str, Any] | None:
        """Of a job that has a plan; see `History`."""
        with self._chain.lock:
            return self._history.filter_use(job)

    @property
    def is_adaptive(self) -> bool:
        """See `History`."""
        with self._chain.lock:
            return self._history.is_adaptive
