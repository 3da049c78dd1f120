"""Pay for the slots of one plan, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from fedpriv.errors import ConfigError, SlotError
from fedpriv.files import canonical_json, sha256
from fedpriv.models.vector import Vector
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.planning import Planned
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
from fedpriv.privacy.ledger.terms import new_dataset_id
from fedpriv.protocol import values_digest


class Slots:
    """The slots of a plan in an open ledger.

    Raises:
        BudgetError: the ledger does not pay for the plan. Nothing was spent.
        ConfigError: the ledger has another plan of that name.
    """

    def __init__(self, ledger: Ledger, plan: Plan) -> None:
        known = ledger.plan(plan.job)
        if known is not None and known != plan:
            raise ConfigError(
                "is the name of a plan with other settings",
                file=ledger.path,
                key="job",
                value=plan.job,
                fix="A plan can't change once it is committed: use the same settings, or a new"
                " name.",
            )
        ledger.check(plan)
        self.ledger, self.plan = ledger, plan
        self.taken = len(ledger.slots(plan.job))  # slots reserved earlier may have been used

    @property
    def left(self) -> int:
        """The number of slots that can still be paid for."""
        return self.plan.steps - self.taken

    @property
    def epsilon(self) -> float:
        """An upper bound of the cost of the slots taken so far, by themselves; 0 before any."""
        if not self.taken:
            return 0.0
        return epsilon_upper([self.plan.event(self.taken)], self.ledger.terms.plan_delta)

    def pay(self, parameters: Vector) -> Reservation:
        """Pay for the next slot, on disk.

        Args:
            parameters: the public parameters with which the step is computed.

        Raises:
            SlotError: all slots were taken.
            LedgerError: the ledger can't be written.
        """
        if not self.left:
            raise SlotError(
                f"All {self.plan.steps} steps of {self.plan.job!r} were taken. Further ones need a"
                " plan of their own, and are paid for as such."
            )
        slot = self.taken
        asked = sha256(canonical_json([self.plan.job, slot, values_digest(parameters)]))
        [paid] = self.ledger.pay(self.plan, range(slot, slot + 1), asked)
        self.taken += 1
        return paid

    def release(self, paid: Reservation, released: Vector) -> None:
        """Note that a slot was released, before anybody gets the released values.

        Only a digest of them is kept. Nobody asks for them again, as a server might.
        """
        self.ledger.release(paid, sha256(released.tobytes()).encode())


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
