"""The ledger that pays for a loop, and what is stated when it was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.planning import Planned
from fedpriv.privacy.ledger.ledger import Ledger, Terms
from fedpriv.privacy.ledger.terms import new_dataset_id


def open_lasting(path: Path, witness: Path | None) -> Ledger:
    """Open a ledger that outlives the loop. It was made beforehand, with its people's budget.

    Raises:
        ConfigError: the ledger was made for simulations.
        LedgerError: the ledger can't be used; see `Ledger.open`.
    """
    ledger = Ledger.open(path, witness)
    if ledger.terms.simulated:
        ledger.close()
        problem = "was made for simulations, and pays for no training whose result may leave"
        fix = "Make another one: fedpriv ledger init, without --simulated."
        raise ConfigError(problem, file=path, key="ledger", fix=fix)
    return ledger


def not_stated(key: str) -> ConfigError:
    """Return the error for a caller who gives neither this setting nor a ledger."""
    return ConfigError(
        "is missing",
        key=key,
        fix="State it, or name a ledger, which has it. The size is public: type a number, don't"
        " count the records.",
    )


def declared_size(stated: int | None, ledger: str | None) -> int:
    """Return the declared number of units, which is stated here or in the ledger.

    Raises:
        ConfigError: nobody stated it.
        LedgerError: the ledger can't be read.
    """
    if stated is None and ledger is not None:
        with Ledger.open(Path(ledger), reading=True) as found:
            return found.terms.declared_size
    if stated is None:
        raise not_stated("size")
    return stated


def check_stated(
    ledger: Ledger, size: int | None, delta: float | None, unit: str, most: int
) -> None:
    """Check that a ledger was made with the settings that are stated now. None is not checked.

    Args:
        most: the most records of a unit.

    Raises:
        ConfigError: the ledger was made with another value.
    """
    terms = ledger.terms
    for key, stated, fixed in (
        ("size", size, terms.declared_size),
        ("delta", delta, terms.delta),
        ("unit", unit, terms.unit),
        ("max_records_per_unit", most, terms.max_records_per_unit),
    ):
        if stated is not None and stated != fixed:
            problem = f"was fixed as {fixed!r} when the ledger was made"
            fix = "State the same again. Another population needs another ledger."
            raise ConfigError(problem, file=ledger.path, key=key, value=stated, fix=fix)


@contextmanager
def ledger_for(planned: Planned, size: int, unit: str, most: int) -> Iterator[Ledger]:
    """Make a ledger for one plan, which is removed with the loop. It knows no other use of records.

    Args:
        most: the most records of a unit.
    """
    target = planned.target_epsilon
    terms = Terms(
        dataset_id=new_dataset_id(),
        declared_size=size,
        unit=unit,
        max_records_per_unit=most,
        delta=planned.delta,
        budget=planned.epsilon if target is None else target,
        simulated=False,
    )
    with (
        TemporaryDirectory(prefix="fedpriv-", ignore_cleanup_errors=True) as folder,
        Ledger.create(Path(folder) / "ledger.db", terms) as ledger,
    ):
        yield ledger
