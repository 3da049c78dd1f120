"""The site's own record of what it has spent: append-only, durable, exclusive.

One ledger covers one population of units for life. Every mechanism that runs on those
records is first written here, as a *reservation* of a slot of a *plan*, and a reservation is
spent whether or not anything was released for it. The order for a slot is

    reserve (on disk) → compute → reply and `release` in one transaction (on disk) → send

so a crash at any point leaves a ledger that counts at least what has left the site, and a
repeated request is answered with the stored reply, never with a second computation.

The rule `plan`: the ledger holds one plan, whose (sample rate, noise) and number of slots are
fixed before its first release. What the plan costs in full is committed from then on.

Rows hold public fields only (parameters, counts, digests of released values), each with the
hash of the row before, so an edited or missing row shows. A copy restored from a backup is
consistent in itself; it is noticed by a witness outside the backup (`check_witness`).

Storage is SQLite. `synchronous=EXTRA` with a rollback journal: after a commit returns, the
rows survive power loss, the deletion of the journal included. A write-ahead log is not used,
because a copy of the main file alone would then be an older ledger that looks whole.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NoReturn

from fedpriv.errors import (
    BudgetError,
    LedgerCorruptError,
    LedgerError,
    LedgerInUseError,
    SlotError,
)
from fedpriv.files import canonical_json, sync_folder
from fedpriv.privacy.accountant import Event, epsilon_upper

APPLICATION = 0x66707631  # "fpv1", in the file's header
FORMAT = 1
GENESIS = "0" * 64
KEPT_REPLIES = 2
_SCHEMA = (
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL,"
    " hash TEXT NOT NULL) STRICT",
    "CREATE TABLE outbox (job TEXT NOT NULL, slot INTEGER NOT NULL, reply BLOB NOT NULL,"
    " PRIMARY KEY (job, slot)) STRICT",
    "CREATE TRIGGER rows_are_kept BEFORE DELETE ON rows"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER rows_are_final BEFORE UPDATE ON rows"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)


@dataclass(frozen=True)
class Terms:
    """What a ledger is about; fixed when it is created.

    Attributes:
        dataset_id: random, never a hash of the data (that would tell who is in it).
        declared_size: units in the population, as the administrator states it.
        unit: ``record`` or the id column whose rows are one unit.
        max_records_per_unit: how many records of a unit enter its vector.
        delta: of the (ε, δ) claim, below 1 / declared_size.
        budget: ε for the whole life of the ledger.
        simulated: made by a simulation; the network engine refuses it.
        private: False when sampling or noise came from a seed (public data only).
    """

    dataset_id: str
    declared_size: int
    unit: str
    max_records_per_unit: int
    delta: float
    budget: float
    simulated: bool
    private: bool = True
    rule: Literal["plan"] = "plan"
    relation: Literal["add-or-remove-one-unit"] = "add-or-remove-one-unit"

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise LedgerError(f"Expected budget={self.budget} > 0.")
        if not 0 < self.delta < 1 / self.declared_size:
            raise LedgerError(
                f"Expected 0 < delta={self.delta} < 1 / declared size {self.declared_size}."
            )


@dataclass(frozen=True)
class Plan:
    """`steps` slots of one mechanism, committed together.

    Attributes:
        job: id of the job, unique for this ledger.
        noise_multiplier: standard deviation of the noise over the sensitivity.
    """

    job: str
    method: str
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int

    @property
    def event(self) -> Event:
        return Event(self.sample_rate, self.noise_multiplier, self.steps)


@dataclass(frozen=True)
class Head:
    """The newest row: its number (rows so far) and its hash."""

    rows: int
    hash: str


@dataclass(frozen=True)
class Reservation:
    """A slot that is paid for: the only thing that buys a release. Made by `Ledger.reserve`."""

    ledger: str
    plan: Plan
    slot: int
    request_digest: str


class Ledger:
    """An open ledger; holds an exclusive lock on its file until `close`.

    Use `Ledger.create` or `Ledger.open`. Methods may be called from any thread.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()
        self._terms: Terms | None = None
        self._forget()

    def _forget(self) -> None:
        self._hashes = [GENESIS]
        self._plans: dict[str, Plan] = {}
        self._requests: dict[tuple[str, int], str] = {}  # reserved slots → request digest
        self._released: dict[tuple[str, int], str] = {}  # released slots → reply digest

    @classmethod
    def create(cls, path: Path, terms: Terms) -> Ledger:
        """Make a new ledger.

        Raises:
            LedgerError: there is already a ledger of that name. (An empty file, as a crash in
                this very call may leave it, never held a row and is used.)
        """
        if path.exists() and path.stat().st_size:
            raise LedgerError(f"{path}: already exists. Open it, or choose another path.")
        path.parent.mkdir(parents=True, exist_ok=True)
        ledger = cls(path, _connect(path))
        try:
            with ledger._transaction():
                for statement in _SCHEMA:
                    ledger._connection.execute(statement)
                ledger._append("terms", asdict(terms))
        except BaseException:
            ledger.close()
            raise
        sync_folder(path.parent)
        return ledger

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Open a ledger and check all of it.

        Raises:
            LedgerError: no such file, not a ledger, or of a newer format.
            LedgerInUseError: another process has it.
            LedgerCorruptError: a row was edited or is missing.
        """
        if not path.is_file():
            raise LedgerError(f"{path}: no such ledger.")
        ledger = cls(path, _connect(path))
        try:
            ledger._read()
        except sqlite3.DatabaseError as error:
            ledger.close()
            raise LedgerCorruptError(
                f"{path}: can't be read as a ledger ({error})."
                " Restore it together with its newest head, or close the population."
            ) from None
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Give the lock back."""
        self._connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def terms(self) -> Terms:
        assert self._terms is not None
        return self._terms

    @property
    def head(self) -> Head:
        with self._lock:
            return Head(len(self._hashes) - 1, self._hashes[-1])

    def check(self, plan: Plan) -> float:
        """The ε this ledger would be committed to with `plan`; writes nothing.

        Raises:
            BudgetError: it does not fit, or the rule allows no further plan.
        """
        with self._lock:
            if self._plans.get(plan.job) == plan:
                return self.epsilon_committed
            if self._plans:
                held = next(iter(self._plans))
                raise BudgetError(
                    f"{self.path}: under the rule 'plan' this ledger holds one plan for life, that"
                    f" of job {held!r}, and job {plan.job!r} would be another. Stopped or finished"
                    " slots stay charged. Adding records does not make a fresh budget."
                )
            epsilon = epsilon_upper([plan.event], self.terms.delta)
            if epsilon > self.terms.budget:
                raise BudgetError(
                    f"{self.path}: {plan.steps} steps at rate {plan.sample_rate:g} and noise"
                    f" {plan.noise_multiplier:g} cost ε = {epsilon:.3f} at δ ="
                    f" {self.terms.delta:g}, more than the budget {self.terms.budget:g}."
                    " Use more noise or fewer steps."
                )
            return epsilon

    def commit(self, plan: Plan) -> float:
        """Commit to `plan` in full; the same plan again changes nothing.

        Returns:
            ε committed, an upper bound.

        Raises:
            BudgetError: as `check`. Nothing was written.
        """
        with self._lock:
            epsilon = self.check(plan)
            if plan.job not in self._plans:
                with self._transaction():
                    self._append("plan", asdict(plan))
            return epsilon

    def reserve(self, job: str, slot: int, request_digest: str) -> Reservation | bytes:
        """Pay for a slot, or find the reply that was already paid for.

        Args:
            request_digest: of everything that decides what is computed.

        Returns:
            A reservation to compute under (the same one after a crash before the release), or
            the stored reply if the slot was released.

        Raises:
            SlotError: no such slot, the slot was reserved for another request, or its reply is
                no longer kept.
        """
        with self._lock:
            plan = self._plans.get(job)
            if plan is None or not 0 <= slot < plan.steps:
                raise SlotError(f"{self.path}: no plan of job {job!r} holds a slot {slot}.")
            key = (job, slot)
            known = self._requests.get(key)
            if known is not None and known != request_digest:
                raise SlotError(
                    f"{self.path}: slot {slot} of job {job!r} was reserved for another request"
                    " and stays refused."
                )
            if key in self._released:
                return self._stored(key)
            if known is None:
                with self._transaction():
                    self._append("reserve", {"job": job, "slot": slot, "request": request_digest})
            return Reservation(self.terms.dataset_id, plan, slot, request_digest)

    def release(self, reservation: Reservation, reply: bytes) -> Head:
        """Store the reply and mark its slot released, in one transaction, before it is sent.

        Raises:
            SlotError: the slot is not reserved for this request, or is already released.
        """
        key = (reservation.plan.job, reservation.slot)
        with self._lock:
            if self._requests.get(key) != reservation.request_digest or key in self._released:
                raise SlotError(
                    f"{self.path}: slot {key[1]} of job {key[0]!r} is not open for release."
                )
            with self._transaction():
                self._connection.execute("INSERT INTO outbox VALUES (?, ?, ?)", (*key, reply))
                self._connection.execute(
                    "DELETE FROM outbox WHERE job = ? AND slot <= ?",
                    (key[0], key[1] - KEPT_REPLIES),
                )
                self._append(
                    "release",
                    {"job": key[0], "slot": key[1], "reply": hashlib.sha256(reply).hexdigest()},
                )
            return self.head

    @property
    def epsilon_committed(self) -> float:
        """The claim: an upper bound over every plan in full. 0 without a plan."""
        with self._lock:
            return epsilon_upper([plan.event for plan in self._plans.values()], self.terms.delta)

    @property
    def epsilon_spent(self) -> float:
        """An upper bound over the reserved slots only.

        Shown as what it is: no guarantee if the decision to stop depended on what was released.
        """
        return epsilon_upper(self.spent_events, self.terms.delta)

    @property
    def spent_events(self) -> list[Event]:
        """The reserved slots as events, one per plan."""
        with self._lock:
            counts = dict.fromkeys(self._plans, 0)
            for job, _ in self._requests:
                counts[job] += 1
            return [
                Event(plan.sample_rate, plan.noise_multiplier, counts[job])
                for job, plan in self._plans.items()
                if counts[job]
            ]

    def plan(self, job: str) -> Plan | None:
        """The plan of a job, if the ledger holds one."""
        with self._lock:
            return self._plans.get(job)

    def slots(self, job: str) -> list[tuple[int, bool]]:
        """Reserved slots of a job in order, each with whether it was released."""
        with self._lock:
            return sorted((s, (j, s) in self._released) for j, s in self._requests if j == job)

    def rows(self) -> list[dict[str, Any]]:
        """Every row, oldest first: number, kind, hash and its public fields."""
        with self._lock:
            found = self._connection.execute(
                "SELECT number, kind, body, hash FROM rows ORDER BY number"
            ).fetchall()
        return [
            {"number": number, "kind": kind, "hash": row_hash, **json.loads(body)}
            for number, kind, body, row_hash in found
        ]

    def check_witness(self, witness: Head) -> None:
        """Compare with a head that someone outside has seen.

        A witness that is newer than this ledger, or on another branch, means that an older copy
        was restored. A lying witness can make a site stop, never spend.

        Raises:
            LedgerCorruptError: this ledger never had that head.
        """
        with self._lock:
            newest = len(self._hashes) - 1
            if witness.rows > newest or self._hashes[witness.rows] != witness.hash:
                raise LedgerCorruptError(
                    f"{self.path}: went back in time. It holds {newest} rows, and row"
                    f" {witness.rows} was seen outside with another hash or is missing."
                    " Restore the newest copy; releases made since an older one stay spent."
                )

    def _stored(self, key: tuple[str, int]) -> bytes:
        row = self._connection.execute(
            "SELECT reply FROM outbox WHERE job = ? AND slot = ?", key
        ).fetchone()
        if row is None:
            raise SlotError(
                f"{self.path}: slot {key[1]} of job {key[0]!r} was released and answered; only"
                f" the last {KEPT_REPLIES} replies are kept. Resume from a newer checkpoint."
            )
        reply: bytes = row[0]
        if hashlib.sha256(reply).hexdigest() != self._released[key]:
            raise LedgerCorruptError(
                f"{self.path}: the stored reply of slot {key[1]} is not the released one."
            )
        return reply

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All rows or none, in the file and in memory; durable when it ends."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if self._terms is not None and len(self._hashes) > 1:
                    self._forget()
                    self._read()
                if isinstance(error, sqlite3.Error):
                    raise LedgerError(
                        f"{self.path}: can't be written ({error}). Nothing was released."
                    ) from None
                raise

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        """Write one row inside a transaction, and remember it as the reader would."""
        number, previous = len(self._hashes), self._hashes[-1]
        text = canonical_json({**body, "at": datetime.now(UTC).isoformat(timespec="seconds")})
        row_hash = _row_hash(previous, kind, text)
        self._connection.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?)", (number, kind, text.decode(), row_hash)
        )
        self._remember(kind, json.loads(text), row_hash)

    def _read(self) -> None:
        """Rebuild the state from the rows, checking each hash."""
        connection = self._connection
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION:
            raise LedgerError(f"{self.path}: is not a fedpriv ledger.")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT:
            raise LedgerError(
                f"{self.path}: has format {version}; this fedpriv reads format {FORMAT}."
                " Install the version that wrote it."
            )
        cursor = connection.execute("SELECT number, kind, body, hash FROM rows ORDER BY number")
        for number, kind, body, row_hash in cursor:
            if number != len(self._hashes):
                self._corrupt(f"row {len(self._hashes)} is missing")
            if row_hash != _row_hash(self._hashes[-1], kind, body.encode()):
                self._corrupt(f"row {number} was edited")
            self._remember(kind, json.loads(body), row_hash)
        if self._terms is None:
            self._corrupt("row 1 is missing")

    def _corrupt(self, what: str) -> NoReturn:
        raise LedgerCorruptError(
            f"{self.path}: {what}. Nothing is released from it; restore the newest copy."
        )

    def _remember(self, kind: str, body: dict[str, Any], row_hash: str) -> None:
        fields = {key: value for key, value in body.items() if key != "at"}
        if kind == "terms":
            self._terms = Terms(**fields)
        elif kind == "plan":
            self._plans[fields["job"]] = Plan(**fields)
        elif kind == "reserve":
            self._requests[fields["job"], fields["slot"]] = fields["request"]
        elif kind == "release":
            self._released[fields["job"], fields["slot"]] = fields["reply"]
        else:
            self._corrupt(f"row {len(self._hashes)} is of an unknown kind {kind!r}")
        self._hashes.append(row_hash)


def _row_hash(previous: str, kind: str, body: bytes) -> str:
    return hashlib.sha256(b"\n".join((previous.encode(), kind.encode(), body))).hexdigest()


def _connect(path: Path) -> sqlite3.Connection:
    """Open a file for this process alone.

    Raises:
        LedgerInUseError: another connection has it.
    """
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    path.chmod(0o600)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" in str(error):
            raise LedgerInUseError(
                f"{path}: is in use by another process. One process at a time may spend."
            ) from None
        raise LedgerError(f"{path}: can't be opened ({error}).") from None
    except sqlite3.DatabaseError as error:
        connection.close()
        raise LedgerCorruptError(f"{path}: is not a fedpriv ledger ({error}).") from None
    return connection
