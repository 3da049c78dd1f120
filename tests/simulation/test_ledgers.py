"""One writer of each ledger: an earlier holder can pay and release nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.errors import LedgerInUseError, SlotError
from fedpriv.privacy.ledger.ledger import Ledger, Plan
from fedpriv_simulation.ledgers import LedgerKeeper, Lending, LentLedger
from fedpriv_simulation.sites import Sites

Make = Callable[..., Any]
REQUEST = "sha256:" + "0" * 64
PLAN = Plan("job", "dp-lora", 0.1, 20.0, 1.0, 3, "sha256:" + "1" * 64)


@pytest.fixture
def keeper(federation: Make, tmp_path: Path) -> Any:
    file = federation(sites=2)
    found = LedgerKeeper(Sites(load_job(file), tmp_path / "run", 7, "sha256:" + "0" * 64, 10))
    yield found
    found.close()


def lent(keeper: LedgerKeeper, number: int = 0) -> LentLedger:
    """As a process on another machine has it: whatever goes there and back is pickled."""

    def ask(method: str, *given: Any, **named: Any) -> Any:
        given, named = pickle.loads(pickle.dumps((given, named)))
        return pickle.loads(pickle.dumps(getattr(keeper, method)(*given, **named)))

    return LentLedger(ask, number)


def pay(ledger: Ledger, slot: int) -> list[Any]:
    slots = range(slot, slot + 1)
    assert ledger.ask(PLAN, slots, REQUEST) is None
    return ledger.pay(PLAN, slots, REQUEST)


def test_a_lent_ledger_does_what_a_ledger_does(keeper: LedgerKeeper) -> None:
    ledger = lent(keeper)
    paid = pay(ledger, 0)
    head = ledger.release_all(paid, b"reply")
    assert ledger.head == head
    assert ledger.slots("job") == [(0, True)]
    assert ledger.ask(PLAN, range(1), REQUEST) == b"reply"
    with pytest.raises(SlotError, match="not open for release"):
        ledger.release_all(paid, b"another")
    path, spent = ledger.path, ledger.epsilon_spent
    with pytest.raises(LedgerInUseError):
        Ledger.open(path)
    ledger.close()
    with Ledger.open(path, reading=True) as found:
        assert (found.head, found.epsilon_spent) == (head, spent)


def test_everything_that_is_public_of_a_ledger_is_asked_of_the_keeper() -> None:
    """What were not would look for a file that the process must not have open."""
    own = {name for name in dir(Ledger) if not name.startswith("_")}
    made = {name for name in own if hasattr(getattr(Ledger, name), "__self__")}
    assert own - made <= vars(LentLedger).keys()


def test_an_earlier_holder_can_neither_pay_nor_release(keeper: LedgerKeeper) -> None:
    """As a process on a machine that was cut off, and comes back amid a step."""
    first = lent(keeper)
    paid = pay(first, 0)
    second = lent(keeper)
    for late in (
        lambda: first.release_all(paid, b"late"),
        lambda: first.commit(PLAN),
        lambda: pay(first, 1),
        lambda: first.head,
    ):
        with pytest.raises(LedgerInUseError, match=r"site-0 is with another process"):
            late()
    first.close()  # which closes it for nobody else
    assert second.slots("job") == [(0, False)]
    second.release_all(pay(second, 0), b"reply")  # the same slot, which is paid for
    assert second.slots("job") == [(0, True)]
    kinds = [row.kind for row in second.rows()]
    assert kinds == ["terms", "plan", "reserve", "release"]


def test_ledgers_of_two_sites_are_lent_apart(keeper: LedgerKeeper) -> None:
    holder = lent(keeper)
    lent(keeper, number=1)
    assert holder.head.rows == 1


def test_a_holder_may_give_it_back_and_take_it_again(keeper: LedgerKeeper) -> None:
    holder = lent(keeper)
    holder.close()
    with pytest.raises(LedgerInUseError):
        holder.commit(PLAN)
    lent(keeper).commit(PLAN)


def test_when_the_run_has_ended_nobody_gets_a_ledger(keeper: LedgerKeeper) -> None:
    holder = lent(keeper)
    path = holder.path
    keeper.close()
    for again in (lambda: holder.commit(PLAN), lambda: lent(keeper)):
        with pytest.raises(LedgerInUseError):
            again()
    Ledger.open(path).close()


def test_claims_are_those_of_the_driver(keeper: LedgerKeeper) -> None:
    claimed = [("other", "somebody")]
    assert Lending(keeper, [claimed, []]).claimed[0] is claimed
