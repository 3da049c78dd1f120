"""One process, on one machine, writes all ledgers of a run whose sites are on several machines.

Where sites are on several machines, their ledgers are in a folder that the machines share. A lock
on such a file is worth what the file system promises: some keep it on one machine only. And if a
machine is no longer heard of, nobody can tell whether it still writes. So no machine that computes
opens a ledger. A `LedgerKeeper` beside the driver does, and lends each ledger to one holder at a
time: the newest. Every earlier one is refused, whether it is gone or only cut off. Nothing here
rests on clocks or on another machine's locks.

One thing is assumed: the driver's machine is the only one that works in the run directory. The
directory is locked there as on any machine, and that lock is the one that a shared folder may not
keep. So a person who resumes a run on another machine first makes sure that the earlier driver has
ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpriv.errors import LedgerError, LedgerInUseError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv_client.site_ledger import open_or_create_ledger
from fedpriv_simulation.sites import Sites

AT_ONCE = 16  # ledgers that are written at the same time; each waits for its disk
Ask = Callable[..., Any]  # takes the name of a method of `LedgerKeeper`, and its arguments


class LedgerKeeper:
    """Open the ledgers of a run's sites, and do with them what their holders ask.

    Methods may be called from any thread.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._locks = [threading.Lock() for _ in sites.config.sites]
        self._holders = [0 for _ in sites.config.sites]  # the newest holder of each
        self._open: dict[int, Ledger] = {}
        self._closed = False

    def take(self, number: int) -> int:
        """Lend a site's ledger to a new holder, and return its number.

        An earlier holder no longer has it.

        Raises:
            LedgerInUseError: the run has ended.
            FedprivError: as for `open_or_create_ledger`.
        """
        with self._locks[number]:
            if self._closed:
                raise self._in_use(number)
            if number not in self._open:
                section = self._sites.config.sites[number]
                self._open[number] = open_or_create_ledger(self._sites.settings(section))
            self._holders[number] += 1
            return self._holders[number]

    def give_back(self, number: int, holder: int) -> None:
        """Close a ledger, if this is still its holder."""
        with self._locks[number]:
            if holder == self._holders[number] and number in self._open:
                self._open.pop(number).close()

    def call(self, number: int, holder: int, name: str, *given: Any, **named: Any) -> Any:
        """Return the value of a ledger's property, or what its method of that name returns.

        Raises:
            LedgerInUseError: there is a newer holder. Nothing was done.
            FedprivError: any error of the ledger.
        """
        with self._locks[number]:
            if holder != self._holders[number] or number not in self._open:
                raise self._in_use(number)
            ledger = self._open[number]
            if isinstance(getattr(Ledger, name), property):
                return getattr(ledger, name)
            return getattr(ledger, name)(*given, **named)

    def close(self) -> None:
        """Give all ledgers back for good."""
        self._closed = True
        for number, lock in enumerate(self._locks):
            with lock:
                if number in self._open:
                    self._open.pop(number).close()

    def _in_use(self, number: int) -> LedgerInUseError:
        name = self._sites.config.sites[number].name
        return LedgerInUseError(f"The ledger of {name} is with another process by now.")


class LentLedger(Ledger):
    """A ledger that a `LedgerKeeper` holds open. The keeper answers whatever it is asked.

    Args:
        ask: calls a method of the keeper, and raises what that method raises.

    Raises:
        LedgerInUseError, FedprivError: as for `LedgerKeeper.take`, and later as for
            `LedgerKeeper.call`.
    """

    def __init__(self, ask: Ask, number: int) -> None:
        self._ask, self._which = ask, (number, ask("take", number))

    def _call(self, name: str, *given: Any, **named: Any) -> Any:
        return self._ask("call", *self._which, name, *given, **named)

    def close(self) -> None:
        """Give the ledger back."""
        self._ask("give_back", *self._which)


@dataclass(frozen=True)
class Lending:
    """Give a process of Ray the ledgers of its sites.

    Attributes:
        keeper: the actor of a `LedgerKeeper`.
        claimed: `claimed` of each site, as for `Site`. Which units belong to whom is settled once,
            where the ledgers are.
    """

    keeper: Any
    claimed: Sequence[list[tuple[str, str]]]

    def of(self, number: int) -> dict[str, Any]:
        """Return the arguments of `Sites.open` that give a site its ledger."""
        return {
            "open_ledger": lambda settings: LentLedger(self._ask, number),
            "claimed": self.claimed[number],
        }

    def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        import ray

        try:
            return ray.get(getattr(self.keeper, method).remote(*given, **named))
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise LedgerError(
                f"The process that has the ledgers does not answer ({type(error).__name__})."
                " Nothing was released; resume the run."
            ) from None


def _asked_of_the_keeper(name: str, of: Any) -> Any:
    """Make the property or method of `LentLedger` that stands for the same one of `Ledger`."""

    def method(self: LentLedger, *given: Any, **named: Any) -> Any:
        return self._call(name, *given, **named)

    return property(method) if isinstance(of, property) else method


for _name in dir(Ledger):
    _member = getattr(Ledger, _name)
    if _name.startswith("_") or _name in vars(LentLedger) or hasattr(_member, "__self__"):
        continue  # members that `LentLedger` has itself, and those that make a ledger
    setattr(LentLedger, _name, _asked_of_the_keeper(_name, _member))
