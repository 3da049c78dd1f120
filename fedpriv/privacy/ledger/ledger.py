"""The site's own record of what it has spent.

One ledger covers one population of units for life. Every mechanism that runs on those
records is first written here, as a *reservation* of a slot of a *plan*, and a reservation is
spent whether or not anything was released for it. The order for a slot is

    reserve (on disk) → compute → reply and `release` in one transaction (on disk) → send

so a crash at any point leaves a ledger that counts at least what has left the site, and a
repeated request is answered with the stored reply, never with a second computation.

How plans add up to one claim is its rule (`fedpriv.privacy.ledger.rules`), fixed when it is made.
Rows hold public fields only: parameters, counts, digests of released values. What they add up
to is `fedpriv.privacy.ledger.history`, how they are kept `fedpriv.privacy.ledger.chain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpriv.errors import LedgerCorruptError, LedgerError, SlotError
from fedpriv.files import replacing
from fedpriv.privacy.ledger.chain import Chain, Head, Row, corrupt, on_error
from fedpriv.privacy.ledger.figures import Figures
from fedpriv.privacy.ledger.history import History, Slot
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.reservation import Reservation
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.ledger.witness import Sighting, Witness, seal_key

__all__ = [
    "Head",
    "Ledger",
    "Plan",
    "Reservation",
    "Terms",
]
KEPT_REPLIES = 2  # replies of the newest job


class Ledger(Figures):
    """An open ledger; holds an exclusive lock on its file until `close`.

    Use `Ledger.create` or `Ledger.open`. Methods may be called from any thread.

    Attributes:
        room: entered during each write to the disk, with the bytes of the reply in it.
        approvals: gives what to keep of those who approved a plan, when it is accepted.
    """

    def __init__(self, chain: Chain, witness: Witness | None = None) -> None:
        self._chain, self._witness = chain, witness
        self.room: Callable[[int], AbstractContextManager[None]] = lambda reply: nullcontext()
        self.approvals: Callable[[Plan], list[dict[str, str]]] = lambda plan: []
        self._read()

    @classmethod
    def create(cls, path: Path, terms: Terms, witness: Path | None = None) -> Ledger:
        """Make a new ledger.

        The file gets its name once all of it is there, its witness too; a crash leaves no ledger.

        Args:
            witness: file, outside whatever is backed up with the ledger, that is told of
                every row. It has to be named whenever the ledger is opened.

        Raises:
            LedgerError: there is already one of that name, or a witness of one, or the witness
                can't be written; nothing is left behind.
        """
        if witness is not None and witness.exists():
            raise LedgerError(
                f"{witness}: is the witness of a ledger that was made before. Restore that ledger;"
                f" a new one would be a fresh budget for the same people.{_if_unborn(witness)}"
            )
        terms = replace(terms, witnessed=witness is not None)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.stat().st_size:
            path.unlink()  # it never held a row
        try:
            with replacing(path, 0o600, new=True) as unfinished:
                with closing(cls(Chain.create(unfinished, "terms", terms.as_row()))) as ledger:
                    seen = ledger._sightings(0)
                if witness is not None:
                    Witness.start(witness, terms.dataset_id, seen, seal_key(path))
        except BaseException as error:
            if witness is not None:
                _forget(witness, terms.dataset_id)
            if isinstance(error, FileExistsError):
                found = f"{path}: already exists. Open it, or choose another path."
                raise LedgerError(found) from None
            if isinstance(error, OSError):
                raise LedgerError(f"{path}: can't be made ({error.strerror}).") from None
            raise
        return cls.open(path, witness)

    @classmethod
    def open(cls, path: Path, witness: Path | None = None, *, reading: bool = False) -> Ledger:
        """Open a ledger and check all of it.

        Args:
            witness: the same as when the ledger was made.
            reading: only look at it, and change nothing. This may be done without the witness, and
                the ledger is then not compared with it.

        Raises:
            LedgerError: no such file, not a ledger, of another format, or without its witness.
            LedgerInUseError: another process has it.
            LedgerCorruptError: a row was edited or is missing, or the witness has seen rows
                that are not in it.
        """
        ledger = cls(Chain.open(path, reading=reading))
        with on_error(ledger.close):
            if not reading:
                ledger._take_witness(witness)
            elif witness is not None and (known := ledger._known_witness(witness)) is not None:
                ledger._compare(known)
        return ledger

    def _take_witness(self, path: Path | None) -> None:
        witness = self._known_witness(path, writing=True)
        if witness is not None:
            witness.hold()
            self._witness = witness
            self._compare(witness)
            if witness.sealed < len(witness.seen):  # from an older version, or under a lost key
                self.start_witness(witness.path)
                witness.close()
            self._check_and_tell_witness()

    def start_witness(self, path: Path) -> None:
        """Write all rows into a witness, sealed, and keep it."""
        seen, key = self._sightings(0), seal_key(self.path)
        self._witness = Witness.start(path, self.terms.dataset_id, seen, key)
        self._witness.hold()

    def _known_witness(self, path: Path | None, *, writing: bool = False) -> Witness | None:
        """Return the witness that the ledger was made with; None if it was made without one."""
        if not self.terms.witnessed:
            if path is not None:
                raise LedgerError(f"{self.path}: was made without a witness. Leave it out.")
            return None
        if path is None or not path.exists():
            raise LedgerError(
                f"{self.path}: was made with a witness, and "
                + (f"{path} is not there. Mount its disk" if path else "none is named. Name it")
                + "; if it is lost, see `fedpriv ledger witness`."
            )
        return Witness.read(path, seal_key(self.path) if writing else b"")

    def _compare(self, witness: Witness) -> None:
        """Check that a witness is this ledger's, and has seen no row that is not in it."""
        path = witness.path
        if witness.dataset_id != self.terms.dataset_id:
            raise LedgerError(
                f"{path}: is the witness of population {witness.dataset_id}, and {self.path} is"
                f" the ledger of {self.terms.dataset_id}. Name the witness of this ledger."
            )
        try:
            self._chain.check_witness(witness.seen[-1].head)
        except LedgerCorruptError as error:
            raise LedgerCorruptError(
                f"{error} If there is none, `fedpriv ledger recover {self.path} --witness {path}`"
                " goes on with what is certainly left."
            ) from None

    def close(self) -> None:
        """Give the lock back."""
        self._chain.close()
        if self._witness is not None:
            self._witness.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The ledger's file."""
        return self._chain.path

    @property
    def terms(self) -> Terms:
        """What the ledger is about."""
        return self._history.terms

    @property
    def head(self) -> Head:
        """The newest row's number and hash."""
        return self._chain.head

    def check_witness(self, witness: Head) -> None:
        """See `Chain.check_witness`. A head of a copy that is known to be lost is accepted."""
        with self._chain.lock:
            if witness not in self._history.lost:
                self._chain.check_witness(witness)

    def check(self, plan: Plan) -> float:
        """Return the ε that would be allocated with `plan`; as `check_both`."""
        return self.check_both(plan)[0]

    def check_both(self, plan: Plan) -> tuple[float, float | None]:
        """Return the ε that would be allocated with `plan`, with trust and alone; write nothing.

        The second is None without a budget for it.

        Raises:
            BudgetError: the plan does not fit, or the rule allows no further plan.
        """
        with self._chain.lock:
            known = self._history.accounts.get(plan.job)
            if known is not None and known.plan == plan and not known.closed:
                return self.epsilon_allocated, self.epsilon_alone_allocated
            return self._history.allocated_with(plan)

    def commit(self, plan: Plan) -> float:
        """Commit to `plan` in full; the same plan again changes nothing.

        Returns:
            ε allocated, an upper bound.

        Raises:
            BudgetError: as `check`. Nothing was written.
        """
        with self._chain.lock:
            self._check_and_tell_witness()
            epsilon = self.check(plan)
            if plan.job not in self._history.accounts:
                approvals = self.approvals(plan)
                with self._transaction():
                    self._append("plan", plan.as_row())
                    if approvals:
                        self._append("approved", {"job": plan.job, "approvals": approvals})
            return epsilon

    def ask(self, plan: Plan, slots: range, request_digest: str) -> bytes | None:
        """Return the stored reply of a request; None if its slots are still to be paid for.

        Nothing is written. What paying would refuse is refused here already, as far as it is known.

        Args:
            slots: consecutive slots, at least one, that make one reply.
            request_digest: the digest of everything that decides what is computed.

        Raises:
            SlotError, BudgetError: see `reserve_all` and `commit`.
        """
        with self._chain.lock:
            self._check_and_tell_witness()
            if plan.job not in self._history.accounts:
                self.check(plan)
            else:
                self._known(plan.job, slots, request_digest)
                return self._answer(plan, slots)
        return None

    def pay(self, plan: Plan, slots: range, request_digest: str) -> list[Reservation]:
        """Commit to the plan, if that is still to be done, and reserve the slots, on disk.

        Args:
            slots, request_digest: as asked before.

        Raises:
            BudgetError: as `commit`. Nothing was written.
            SlotError: as `reserve_all`; or the request was answered meanwhile.
        """
        self.commit(plan)
        paid = self.reserve_all(plan.job, slots, request_digest)
        if isinstance(paid, bytes):
            raise SlotError(f"{_named(slots)} of job {plan.job!r}: answered meanwhile.")
        return paid

    def reserve(self, job: str, slot: int, request_digest: str) -> Reservation | bytes:
        """Reserve one slot, as `reserve_all` does."""
        found = self.reserve_all(job, range(slot, slot + 1), request_digest)
        return found if isinstance(found, bytes) else found[0]

    def reserve_all(self, job: str, slots: range, request_digest: str) -> list[Reservation] | bytes:
        """Pay for slots that make one reply, all or none; or find the reply they paid for.

        Args:
            slots: consecutive slots, at least one.
            request_digest: the digest of everything that decides what is computed.

        Returns:
            A reservation of each slot to compute under (the same again after a crash before the
            release), or the stored reply if they were released.

        Raises:
            SlotError: no such slot, one was reserved for another request, or with others, or
                their reply is no longer kept, or the job is closed.
            BudgetError: as `History.check_drawn`, after the population has grown.
        """
        with self._chain.lock:
            self._check_and_tell_witness()
            plan = self._known(job, slots, request_digest)
            reply = self._answer(plan, slots)
            if reply is not None:
                return reply
            if (job, slots[0]) not in self._history.requests:
                with self._transaction():
                    for slot in slots:
                        body = {"job": job, "slot": slot, "request": request_digest}
                        self._append("reserve", body)
            return [Reservation._of(self.terms, plan, slot, request_digest) for slot in slots]

    def _known(self, job: str, slots: range, request_digest: str) -> Plan:
        """Return the plan that holds the slots, after a check that they are this request's or free.

        Raises:
            SlotError: they are another's, or were not released together, or the job is closed.
            BudgetError: they are not released, and the population is too large for the plan's sums.
        """
        account = self._history.accounts.get(job)
        if account is None or not (slots and slots[0] >= 0 and slots[-1] < account.plan.steps):
            raise SlotError(f"{self.path}: no plan of job {job!r} holds {_named(slots)}.")
        keys = [(job, slot) for slot in slots]
        known = {self._history.requests.get(key) for key in keys}
        if known - {None, request_digest} or len(known) > 1:
            raise SlotError(
                f"{self.path}: {_named(slots)} of job {job!r}: reserved for another request; this"
                " one stays refused."
            )
        released = [key in self._history.releases for key in keys]
        if any(released) and not all(released):
            raise SlotError(f"{self.path}: {_named(slots)} of job {job!r}: released in part.")
        if account.closed and not all(released):
            raise SlotError(f"{self.path}: job {job!r} is closed ({account.closed}).")
        if not all(released):
            self._history.check_drawn(account.plan)
        return account.plan

    def _answer(self, plan: Plan, slots: range) -> bytes | None:
        """Return the reply that was released for slots that are known; None before that.

        Raises:
            SlotError: a set holds their share, and the request must name that set; or the reply is
                not kept any more.
        """
        if (plan.job, slots[0]) not in self._history.releases:
            return None
        if plan.is_shared:
            raise SlotError(
                f"{self.path}: {_named(slots)} of job {plan.job!r} has given its share to a sum."
                " It is asked for again with that sum's set."
            )
        return self._stored((plan.job, slots[0]))

    def release(self, reservation: Reservation, reply: bytes, tag: str | None = None) -> Head:
        """Release one slot, as `release_all` does."""
        return self.release_all([reservation], reply, tag)

    def release_all(
        self, reservations: Sequence[Reservation], reply: bytes, tag: str | None = None
    ) -> Head:
        """Store a reply and mark its slots released, in one transaction, before it is sent.

        Args:
            tag: the tag of the set whose sum the reply is a share of, in a job with a secure sum;
                the slots will never have another.

        Raises:
            SlotError: a slot is not reserved for this request, or is already released; or a tag
                is missing, or has no place in the job.
        """
        keys = [(paid.plan.job, paid.slot) for paid in reservations]
        with self._chain.lock:
            for key, paid in zip(keys, reservations, strict=True):
                is_paid = self._history.requests.get(key) == paid.request_digest
                is_paid &= paid.ledger == self.terms.dataset_id
                is_paid &= paid.plan.is_shared == (tag is not None)
                if not is_paid or key in self._history.releases:
                    raise SlotError(
                        f"{self.path}: slot {key[1]} of job {key[0]!r} is not open for release."
                    )
            digest = hashlib.sha256(reply).hexdigest()
            with self._transaction(len(reply)):
                self._chain.put_reply(*keys[0], reply, keep=KEPT_REPLIES)
                for job, slot in keys:
                    body = {"job": job, "slot": slot, "reply": digest}
                    self._append("release", body if tag is None else {**body, "tag": tag})
            return self.head

    def share(self, job: str, slot: int, tag: str) -> bytes | None:
        """Return the share that was released for a slot, to be sent again; None before its release.

        Raises:
            SlotError: it was released for another set, which it stays with for ever; or it is not
                kept any more.
        """
        with self._chain.lock:
            self._check_and_tell_witness()
            key = (job, slot)
            if key not in self._history.releases:
                return None
            if self._history.tags.get(key) != tag:
                raise SlotError(
                    f"{self.path}: slot {slot} of job {job!r} has given its share to the sum of"
                    " another set."
                )
            return self._stored(key)

    def order(
        self, rows: Sequence[tuple[str, dict[str, Any]]], check: Callable[[History], None]
    ) -> None:
        """Write rows that an administrator ordered, all or none; see `administration`.

        Args:
            check: gets what the rows so far add up to, and raises if the new ones can't be written.
        """
        with self._chain.lock:
            self._check_and_tell_witness()
            check(self._history)
            with self._transaction():
                for kind, body in rows:
                    self._append(kind, body)

    @property
    def history(self) -> History:
        """What the rows add up to, for a caller who has the ledger alone."""
        return self._history

    def rows(self) -> list[Row]:
        """Return every row, oldest first."""
        return self._chain.rows()

    def check_outbox(self) -> None:
        """Check that every kept reply is the one that was released.

        Raises:
            LedgerCorruptError: one is not.
        """
        with self._chain.lock:
            for key in self._history.releases:
                reply = self._chain.reply(*key)
                if reply is not None:
                    self._check_reply(key, reply)

    def _stored(self, key: Slot) -> bytes:
        reply = self._chain.reply(*key)
        if reply is None:
            raise SlotError(
                f"{self.path}: slot {key[1]} of job {key[0]!r} was released and answered; only"
                f" the last {KEPT_REPLIES} replies of the newest job are kept. Resume from a newer"
                " checkpoint."
            )
        self._check_reply(key, reply)
        return reply

    def _check_reply(self, key: Slot, reply: bytes) -> None:
        if hashlib.sha256(reply).hexdigest() != self._history.releases[key]:
            raise LedgerCorruptError(
                f"{self.path}: the stored reply of slot {key[1]} is not the released one."
            )

    @contextmanager
    def _transaction(self, reply: int = 0) -> Iterator[None]:
        """Change rows and what they add up to together or not at all; then tell the witness."""
        with on_error(self._read), self.room(reply), self._chain.transaction():
            yield
        self._check_and_tell_witness()

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        self._chain.append(kind, body, dated=kind not in ("reserve", "release"))
        try:
            self._history.take(kind, body)
        except ValueError as error:
            raise corrupt(self.path, str(error)) from None

    def _check_and_tell_witness(self) -> None:
        """Check, before anything leaves, that the file is the one opened and the witness knows."""
        self._chain.check_file()
        if self._history.rows != self.head.rows:
            self._chain.close()
            raise corrupt(self.path, "the rows are not those that were read")
        if self._witness is not None and len(self._witness.seen) < self.head.rows:
            seen = self._sightings(len(self._witness.seen))
            with self.room(0):
                self._witness.add(seen)

    def _sightings(self, after: int) -> list[Sighting]:
        """Return the rows after the first `after`, as a witness is told of them."""
        rows, history = self._chain.rows(after), self._history
        return [Sighting(row.number, row.hash, *history.snapshot(row.number)[1:]) for row in rows]

    def _read(self) -> None:
        """Rebuild what is remembered from the rows; a ledger that can't be read is closed."""
        with on_error(self._chain.close):  # with half a history, the same slots would be sold again
            self._history = read_history(self._chain.rows(), self.path)


def _named(slots: range) -> str:
    return f"slot {slots[0]}" if len(slots) == 1 else f"slots {slots.start}-{slots.stop - 1}"


def read_history(rows: list[Row], path: Path) -> History:
    """Add up rows.

    Raises:
        LedgerError: one is of an earlier version, and not read any more.
        LedgerCorruptError: they don't add up.
    """
    try:
        first, *rest = rows
        history = History(first.kind, first.body)
        for row in rest:
            history.take(row.kind, row.body)
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from None
    except ValueError as error:
        raise corrupt(path, str(error)) from None
    return history


def _forget(witness: Path, dataset_id: str) -> None:
    """Remove a witness if it is that of a ledger that was not made."""
    with suppress(LedgerError):
        if Witness.read(witness).dataset_id == dataset_id:
            witness.unlink()


def _if_unborn(witness: Path) -> str:
    """Say what to do about a witness whose ledger may never have existed."""
    with suppress(LedgerError):
        found = Witness.read(witness)
        if len(found.seen) == 1:
            return (
                f" If there never was a ledger of population {found.dataset_id}, as when making it"
                " was interrupted, remove this file."
            )
    return ""
