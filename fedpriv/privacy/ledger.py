"""The site's own record of what it has spent.

One ledger covers one population of units for life. Every mechanism that runs on those
records is first written here, as a *reservation* of a slot of a *plan*, and a reservation is
spent whether or not anything was released for it. The order for a slot is

    reserve (on disk) → compute → reply and `release` in one transaction (on disk) → send

so a crash at any point leaves a ledger that counts at least what has left the site, and a
repeated request is answered with the stored reply, never with a second computation.

The rule `plan`: the ledger holds one plan, whose (sample rate, noise) and number of slots are
fixed before its first release. What the plan costs in full is committed from then on.

Rows hold public fields only: parameters, counts, digests of released values. How they are
kept is `fedpriv.privacy.chain`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from fedpriv.errors import BudgetError, LedgerCorruptError, LedgerError, SlotError
from fedpriv.privacy.accountant import Event, epsilon_upper
from fedpriv.privacy.chain import Chain, Head, corrupt

__all__ = ["Head", "Ledger", "Plan", "Reservation", "Terms"]
KEPT_REPLIES = 2


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
        proposal: digest of all that was proposed, so that nothing of it changes afterwards.
    """

    job: str
    method: str
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    steps: int
    proposal: str

    @property
    def event(self) -> Event:
        return Event(self.sample_rate, self.noise_multiplier, self.steps)


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

    Attributes:
        terms: what it is about.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._read()

    @classmethod
    def create(cls, path: Path, terms: Terms) -> Ledger:
        """Make a new ledger.

        Raises:
            LedgerError: there is already one of that name.
        """
        return cls(Chain.create(path, "terms", asdict(terms)))

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Open a ledger and check all of it.

        Raises:
            LedgerError: no such file, not a ledger, or of a newer format.
            LedgerInUseError: another process has it.
            LedgerCorruptError: a row was edited or is missing.
        """
        chain = Chain.open(path)
        try:
            return cls(chain)
        except BaseException:
            chain.close()
            raise

    def close(self) -> None:
        """Give the lock back."""
        self._chain.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._chain.path

    @property
    def head(self) -> Head:
        """The newest row's number and hash."""
        return self._chain.head

    def check_witness(self, witness: Head) -> None:
        """See `Chain.check_witness`."""
        self._chain.check_witness(witness)

    def check(self, plan: Plan) -> float:
        """The ε this ledger would be committed to with `plan`; writes nothing.

        Raises:
            BudgetError: it does not fit, or the rule allows no further plan.
        """
        with self._chain.lock:
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
        with self._chain.lock:
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
        with self._chain.lock:
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
        with self._chain.lock:
            if self._requests.get(key) != reservation.request_digest or key in self._released:
                raise SlotError(
                    f"{self.path}: slot {key[1]} of job {key[0]!r} is not open for release."
                )
            with self._transaction():
                self._chain.put_reply(*key, reply, keep=KEPT_REPLIES)
                self._append(
                    "release",
                    {"job": key[0], "slot": key[1], "reply": hashlib.sha256(reply).hexdigest()},
                )
            return self.head

    @property
    def epsilon_committed(self) -> float:
        """The claim: an upper bound over every plan in full. 0 without a plan."""
        with self._chain.lock:
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
        with self._chain.lock:
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
        with self._chain.lock:
            return self._plans.get(job)

    def slots(self, job: str) -> list[tuple[int, bool]]:
        """Reserved slots of a job in order, each with whether it was released."""
        with self._chain.lock:
            return sorted((s, (j, s) in self._released) for j, s in self._requests if j == job)

    def rows(self) -> list[dict[str, Any]]:
        """Every row, oldest first: number, kind, hash and its public fields."""
        return [
            {"number": row.number, "kind": row.kind, "hash": row.hash, **row.body}
            for row in self._chain.rows()
        ]

    def _stored(self, key: tuple[str, int]) -> bytes:
        reply = self._chain.reply(*key)
        if reply is None:
            raise SlotError(
                f"{self.path}: slot {key[1]} of job {key[0]!r} was released and answered; only"
                f" the last {KEPT_REPLIES} replies are kept. Resume from a newer checkpoint."
            )
        if hashlib.sha256(reply).hexdigest() != self._released[key]:
            raise LedgerCorruptError(
                f"{self.path}: the stored reply of slot {key[1]} is not the released one."
            )
        return reply

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Rows and what is remembered of them change together or not at all."""
        try:
            with self._chain.transaction():
                yield
        except BaseException:
            self._read()
            raise

    def _append(self, kind: str, body: dict[str, Any]) -> None:
        self._chain.append(kind, body)
        self._remember(kind, body)

    def _read(self) -> None:
        """Rebuild what is remembered from the rows; a ledger that can't be read is closed."""
        self._plans: dict[str, Plan] = {}
        self._requests: dict[tuple[str, int], str] = {}  # reserved slots → request digest
        self._released: dict[tuple[str, int], str] = {}  # released slots → reply digest
        try:
            first, *rest = self._chain.rows()
            if first.kind != "terms":
                raise corrupt(self.path, "row 1 is not the terms")
            self.terms = Terms(**_fields(first.body))
            for row in rest:
                self._remember(row.kind, _fields(row.body))
        except BaseException:
            self._chain.close()  # half of a memory would sell the same slots again
            raise

    def _remember(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "plan" and not self._plans:
            self._plans[fields["job"]] = Plan(**fields)
            return
        key = (fields.get("job", ""), fields.get("slot", -1))
        if kind == "reserve" and key[0] in self._plans and key not in self._requests:
            self._requests[key] = fields["request"]
        elif kind == "release" and key in self._requests and key not in self._released:
            self._released[key] = fields["reply"]
        else:
            raise corrupt(self.path, f"a row {kind!r} of job {key[0]!r} does not follow")


def _fields(body: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != "at"}
