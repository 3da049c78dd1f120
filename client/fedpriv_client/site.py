"""A site: its records, its ledger, and the two things it will do for a server."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.config.job import ComputeSection, Wire
from fedpriv.data import DataSpec, Population, TokenFile, encode_population, read_labelled
from fedpriv.data.identity import identities
from fedpriv.data.read import UNIT
from fedpriv.errors import (
    AccountingError,
    ConfigError,
    LedgerCorruptError,
    LedgerError,
    ProtocolError,
    SlotError,
    StepFailedError,
)
from fedpriv.files import private_folder
from fedpriv.methods.pe_sgd.site import Span
from fedpriv.methods.registry import site_method
from fedpriv.models.vector import Vector, check_vector
from fedpriv.privacy.ledger.ledger import Head, Ledger, Plan, Reservation, Terms
from fedpriv.privacy.ledger.rules import RdpRule, SumRule
from fedpriv.privacy.ledger.unit_index import UnitIndex
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.privacy.mechanism.release import check_release
from fedpriv.protocol import Offer, Proposal, StepReply, StepRequest
from fedpriv.report import budget
from fedpriv.report.budget import load_or_create_key
from fedpriv.synthetic.records import SetChange, SyntheticSet
from fedpriv.training.batch_invariance import settle
from fedpriv.training.local_steps import local_steps, new_update
from fedpriv.training.private_step import SiteMethod, private_step
from fedpriv.training.team import method_of
from fedpriv.training.worker import ModelRecipe, Worker, WorkerPool
from fedpriv_client.disk_space import LedgerGrowth, reserve_disk_space
from fedpriv_client.limits import Limits

if TYPE_CHECKING:
    import datasets

    from fedpriv.privacy.mechanism.csprng import RandomSource

log = logging.getLogger(__name__)
SIGNING_KEY, REPORT = "report.key", "budget.json"  # in the site's folder
_FIXED = ("declared_size", "unit", "max_records_per_unit", "delta", "simulated", "private")
_GROWS = ("declared_size", "delta")
_IN_THE_SITES_FILE = {  # what is fixed, and where its administrator states it
    "declared_size": "data.size",
    "unit": "data.unit",
    "max_records_per_unit": "data.max_records_per_unit",
    "delta": "budget.delta",
    "dataset_id": "data.dataset_id",
    "budget": "budget.epsilon",
    "rule": "budget.rule",
}


@dataclass(frozen=True)
class SiteSettings:
    """What the administrator of a site has set.

    Attributes:
        data: file, folder or dataset name of the records.
        columns: field → column of the records.
        state_dir: private to the site; holds its key and the data cache, and by default all else.
        ledger: path of the ledger. The ledgers of one folder are one site's: no unit may be in
            two of them.
        terms: what the ledger is about. In a simulation its dataset id, budget and rule are those
            of a new one.
        lasting: the ledger outlives the job, so it was made beforehand, with a budget for life;
            else it is made at first use.
        witness: file on another disk that is told of every row of the ledger.
        model: what is loaded, however the server calls it; None, in a simulation, is what the
            proposal names.
        report_folder: where the newest report is put, to be handed on; None: in `state_dir`.
    """

    name: str
    data: Path | str
    columns: Mapping[str, str]
    state_dir: Path
    ledger: Path
    terms: Terms
    limits: Limits
    compute: ComputeSection
    lasting: bool = False
    witness: Path | None = None
    model: str | None = None
    report_folder: Path | None = None

    @property
    def report(self) -> Path:
        """The newest report, of whatever ledger."""
        return (self.report_folder or self.state_dir) / REPORT


@dataclass
class _Job:
    """A job that this site has made an offer for."""

    proposal: Proposal
    plan: Plan
    recipe: ModelRecipe
    population: Population
    spec: DataSpec
    tokenizer: Any
    synthetic: SyntheticSet | None = None
    span: Span | None = None


def spec_of(proposal: Proposal, settings: SiteSettings) -> DataSpec:
    """How a proposal has the site's records prepared."""
    return DataSpec.of(
        settings.columns,
        proposal.model,
        unit=proposal.privacy.unit,
        max_records_per_unit=proposal.privacy.max_records_per_unit,
    )


def recipe_of(proposal: Proposal, settings: SiteSettings) -> ModelRecipe:
    """The model of a proposal, found where the site says: a server names no file or hub here."""
    model = proposal.model
    if settings.model is not None:
        model = model.model_copy(update={"name": settings.model})
    return ModelRecipe(model, proposal.lora, proposal.seed, settings.compute)


def check_fields(proposal: Proposal, settings: SiteSettings) -> None:
    """Check that the records have what a job needs, and that it needs all of it.

    Raises:
        ProtocolError: they don't, or it does not.
    """
    if set(proposal.fields) != set(settings.columns):
        raise ProtocolError(
            f"data.columns: the job needs {', '.join(sorted(proposal.fields))}; this site has"
            f" {', '.join(sorted(settings.columns))}."
        )


def cache_folder(state_dir: Path) -> Path:
    """Where clear text of records is while a site is open; emptied whenever one is opened."""
    return state_dir / "cache"


def last_report(settings: SiteSettings, dataset_id: str) -> Path:
    """Where the newest report from a ledger is kept, to compare the ledger with.

    Of the ledgers of one folder each has its own: the reports of one say nothing of another. A
    ledger that is used by many runs has it beside itself, where the next run finds it.
    """
    if not settings.terms.simulated:
        return settings.state_dir / "reports" / f"{dataset_id}.json"
    if settings.lasting:
        return settings.ledger.resolve().parent / "reports" / f"{dataset_id}.json"
    return settings.report


def open_ledger(settings: SiteSettings, *, reading: bool = False) -> Ledger:
    """The ledger of a site, compared with its terms and with all that was seen of it elsewhere.

    Args:
        reading: to look at it only.

    Raises:
        LedgerError: it can't be used; see `Ledger.open`.
        LedgerCorruptError: the witness, or the site's own last report, has seen more of it.
        ConfigError: it was made with other terms.
    """
    ledger = Ledger.open(settings.ledger, settings.witness, reading=reading)
    try:
        report = last_report(settings, ledger.terms.dataset_id)
        if report.exists():
            seen = budget.read(report)
            ledger.check_witness(Head(seen.ledger_rows, seen.ledger_head))
        check_terms(settings.terms, ledger)
    except BaseException:
        ledger.close()
        raise
    return ledger


def check_model(worker: Worker, proposal: Proposal, plan: Plan, limits: Limits) -> None:
    """Check the model that was loaded for a proposal, before anything is paid for it.

    Raises:
        ProtocolError: it is not the one that was proposed, or trains what is not allowed.
        NotPrivateError: its per-record gradients can't be computed exactly.
        AccountingError: its noise can't be drawn; see `check_release`.
    """
    if worker.base.digest != proposal.base_digest:
        raise ProtocolError(
            f"model.name: this site's {worker.recipe.model.name!r} is {worker.base.digest}, the"
            f" server's {proposal.base_digest}."
        )
    limits.check_trained(worker.vector)
    if worker.vector.digest != proposal.vector_digest:
        raise ProtocolError("lora: this site would train other shapes than the server.")
    if proposal.projection is not None:
        limits.check_basis(proposal.projection, worker.vector.size)
    check_release(plan, worker.vector.size)
    _ = worker.gradients, worker.at_once, worker.team


def _take_set(job: _Job, request: StepRequest, change: SetChange | None) -> None:
    """Bring the job's synthetic set up to a request; it is known by its digest.

    Raises:
        SyntheticSetError: the request changes a set that is not here.
        ProtocolError: the set is missing, too many, or not of the job's records.
    """
    projection = job.proposal.projection
    announced = None if change is None else change.digest
    if (change is None) != (projection is None) or announced != request.set_digest:
        raise ProtocolError("The request and the job disagree about a synthetic set.")
    if change is None or projection is None:
        return
    if change.size != projection.size:
        raise ProtocolError(f"Expected {projection.size} synthetic records, got {change.size}.")
    made = change.apply(job.synthetic)
    if made is not job.synthetic:
        job.span = Span(projection, made.examples(job.spec, job.tokenizer))
        job.synthetic = made


def _making(settings: SiteSettings) -> str:
    """The command that makes a ledger with the terms that are stated."""
    terms = settings.terms
    if not terms.simulated:
        return "fedpriv-client init"
    return (
        f"fedpriv ledger init {settings.ledger} --size {terms.declared_size} --unit {terms.unit}"
        f" --max-records-per-unit {terms.max_records_per_unit}"
        f" --delta {terms.delta:g} --epsilon BUDGET --simulated"
    )


def check_terms(stated: Terms, ledger: Ledger) -> None:
    """Check that a ledger was made with what is stated now.

    Raises:
        ConfigError: it was not, or one of the two is of a simulation.
    """
    names = {} if stated.simulated else _IN_THE_SITES_FILE
    for key in dict.fromkeys((*_FIXED, *names)):
        now, fixed = getattr(stated, key), getattr(ledger.terms, key)
        if ledger.grown and isinstance(fixed, RdpRule | SumRule):  # derived from the first δ
            now, fixed = now.name, fixed.name
        if now != fixed and key == "simulated":
            raise ConfigError(
                "was made for simulations (simulated), and pays for nothing over the network"
                if fixed
                else "was made for the network (not simulated), and no simulation spends from it",
                file=ledger.path,
                fix="Name another ledger.",
            )
        if now != fixed:
            raise ConfigError(
                f"was fixed as {fixed!r} when the ledger was made",
                file=ledger.path,
                key=names.get(key, key),
                value=now,
                fix="State the same again. Another population needs another ledger."
                + (" If this one grew: fedpriv ledger grow." if key in _GROWS else ""),
            )


class Site:
    """Answers proposals and step requests for one population of records.

    Making one reads and checks the records, claims their units for the ledger, and reserves all the
    disk space that any job may need, so that whatever is wrong shows here, to the
    administrator. From then on no answer to a server depends on what the records hold, but for the
    privatised vectors.

    Attributes:
        distinct: statements that look-alikes in another ledger are different people: that
            ledger's data set, and who states it.

    Args:
        settings: the administrator's.
        pool: workers that hold the model.
        csprng: makes the randomness of one slot, from the job's id and the slot's number;
            secret, unless the ledger's terms say that nothing here is private.

    Raises:
        DataError: the records can't be read, hold a label that is not declared, or the disk has no
            space for what the site's own limits allow.
        LedgerError: the ledger or the signing key can't be used, or the ledger is gone although
            the site has reported from it.
        OverlapError: another ledger of the site covers some of the same units.
        ConfigError: the terms are not those that the ledger was made with.
    """

    def __init__(
        self,
        settings: SiteSettings,
        pool: WorkerPool,
        csprng: Callable[[str, int], RandomSource],
    ) -> None:
        self.settings = settings
        self._pool = pool
        self._csprng = csprng
        self._lock = threading.Lock()  # one slot after the other: a repeat finds its reply
        self._job: _Job | None = None
        self._token_file: TokenFile | None = None
        folder = private_folder(settings.state_dir)
        self.signing_key = load_or_create_key(folder / SIGNING_KEY)  # before anything is paid
        self.ledger = self._open_ledger()
        try:
            self._records = self._read_records()
            self.distinct = self._claim_units()
            self._token_file = self._reserve_disk_space()
            self._growth = LedgerGrowth(self.ledger.path, settings.limits.max_trainable)
        except BaseException:
            self.close()
            raise

    def _open_ledger(self) -> Ledger:
        settings, path = self.settings, self.settings.ledger
        report = settings.report
        if not path.exists() or not path.stat().st_size:
            if report.exists():
                raise LedgerCorruptError(
                    f"{path}: is missing, although {report} was written from it. Restore the"
                    " newest ledger; a new one would be a fresh budget for the same people."
                )
            if settings.lasting:
                raise LedgerError(
                    f"{path}: no such ledger. A ledger that outlives a job is made once, with the"
                    f" budget that its people have for life: {_making(settings)}"
                )
            return Ledger.create(path, settings.terms, settings.witness)
        return open_ledger(settings)

    def _read_records(self) -> datasets.Dataset:
        settings = self.settings
        shutil.rmtree(self._cache, ignore_errors=True)  # of a process that was killed
        return read_labelled(
            settings.data,
            settings.columns,
            unit=settings.terms.unit,
            labels=settings.limits.labels,
            cache_dir=self._cache,
            key=f"sites.{settings.name}.data" if settings.terms.simulated else "data.path",
        )

    def _claim_units(self) -> list[tuple[str, str]]:
        """Claim the units, and return the statements about look-alikes that this rests on."""
        if not self.settings.lasting:  # there is no other ledger that it could share them with
            return []
        terms, path = self.ledger.terms, self.ledger.path.resolve()
        return UnitIndex(path.parent).claim(
            terms.dataset_id,
            (identities(record, terms.unit) for record in self._records),
            file=path.name,
            begun=self.ledger.begun,
        )

    def _reserve_disk_space(self) -> TokenFile:
        terms, records = self.ledger.terms, self._records
        units = len(records) if terms.unit == "record" else len(set(records[UNIT]))
        return reserve_disk_space(self.settings, self._cache, max(units, terms.declared_size))

    @property
    def _cache(self) -> Path:
        return cache_folder(self.settings.state_dir)

    def consider(self, proposal: Proposal) -> Offer:
        """Check a proposal against the site's limits and budget; nothing is committed yet.

        Loads the model and prepares the records for it, so that whatever is wrong with the
        model shows before the first slot is paid.

        Raises:
            FedprivError: the site refuses; the message is for the site alone.

        Privacy:
            Whether and how it refuses is decided by settings, the ledger's public rows and the
            model, never by records.
        """
        ledger, settings = self.ledger, self.settings
        plan = settings.limits.plan(proposal, ledger.terms)
        ledger.check(plan)
        check_fields(proposal, settings)
        with self._lock:
            if self._job is None or self._job.proposal != proposal:
                self._job = self._prepare(proposal, plan)
        head = ledger.head
        return Offer(
            site=settings.name,
            dataset_id=ledger.terms.dataset_id,
            declared_size=ledger.terms.declared_size,
            delta=ledger.terms.delta,
            noise_multiplier=plan.noise_multiplier,
            epsilon=ledger.check(plan),
            budget=ledger.terms.budget,
            ledger_rows=head.rows,
            ledger_head=head.hash,
        )

    def _prepare(self, proposal: Proposal, plan: Plan) -> _Job:
        settings = self.settings
        projection = proposal.projection
        site_method(proposal.method, None if projection is None else Span(projection, ()))
        recipe = recipe_of(proposal, settings)
        with self._pool.borrow(recipe) as worker:
            check_model(worker, proposal, plan, settings.limits)
            if proposal.local is not None:
                new_update(proposal.local, worker.initial, worker)
            tokenizer = worker.base.tokenizer
        spec = spec_of(proposal, settings)
        assert self._token_file is not None
        self._job = None  # whose examples are replaced
        population = encode_population(self._records, spec, tokenizer, self._token_file)
        if plan.numerics != "strict":  # where each record is computed alone
            with self._pool.borrow(recipe) as worker:
                settle(worker, population.units)
        if population.empty_rows:
            shown = ", ".join(map(str, population.empty_rows[:10]))
            log.warning(
                "%s: rows without tokens contribute nothing: %s%s",
                settings.name,
                shown,
                ", …" if len(population.empty_rows) > 10 else "",
            )
        return _Job(proposal, plan, recipe, population, spec, tokenizer)

    def step(
        self, request: StepRequest, vector: Vector, change: SetChange | None = None
    ) -> tuple[StepReply, Vector]:
        """Answer a round's slots: from the outbox if they were answered, else pay and compute.

        Requests are answered one after the other: of two for the same slots the second gets the
        reply of the first.

        Raises:
            FedprivError: refused before anything was sampled.
            StepFailedError: something failed after the sample was drawn.

        Privacy:
            What leaves is the privatised vector, paid by the slots' reservations before it is
            computed and stored with their release before it is returned; and public figures of
            the ledger.
        """
        with self._lock:
            return self._step(request, vector, change)

    def _step(
        self, request: StepRequest, vector: Vector, change: SetChange | None
    ) -> tuple[StepReply, Vector]:
        ledger, job = self.ledger, self._job
        if job is None or job.proposal.job_id != request.job_id:
            raise ProtocolError(f"This site has made no offer for job {request.job_id!r}.")
        slots = range(request.slot, request.slot + job.proposal.round_steps)
        if slots.stop > job.plan.steps or request.slot % len(slots):
            raise SlotError(
                f"Job {request.job_id!r} has {job.plan.steps} slots, {len(slots)} in a round;"
                f" none begins at {request.slot}."
            )
        ledger.check_witness(request.witness)
        csprng = partial(self._csprng, request.job_id)
        if ledger.terms.private and not csprng(request.slot).is_secure:
            raise AccountingError("A private ledger pays for secret randomness only.")
        stored = ledger.answer(job.plan, slots, digest := request.digest(vector))
        if stored is not None:
            return self._reply(request, stored)
        self._growth.check()
        _take_set(job, request, change)
        with self._pool.borrow(job.recipe) as worker:
            check_vector(vector, worker.vector.size)
            method = method_of(worker, job.proposal.method, job.span)
            size = method.prepare(worker, vector)
            check_release(job.plan, size)
            ledger.commit(job.plan)
            paid = ledger.reserve_all(request.job_id, slots, digest)
            if isinstance(paid, bytes):
                return self._reply(request, paid)
            try:
                released = self._compute(job, method, size, worker, vector, paid, csprng)
                payload = np.ascontiguousarray(released.value, dtype="<f4").tobytes()
                ledger.release_all(paid, payload)
                return self._reply(request, payload)
            except Exception as error:
                log.exception("%s: slot %d failed", self.settings.name, request.slot)
                raise StepFailedError() from error

    def _compute(
        self,
        job: _Job,
        method: SiteMethod,
        size: int,
        worker: Worker,
        vector: Vector,
        paid: Sequence[Reservation],
        csprng: Callable[[int], RandomSource],
    ) -> Privatised[Vector]:
        """The noisy sum of a round's only step, or the move that its steps make."""
        local, people = job.proposal.local, job.population
        if local is None:
            [slot] = paid
            return private_step(method, worker, people, vector, slot, csprng(slot.slot), size)
        units = job.plan.sample_rate * self.ledger.terms.declared_size
        return local_steps(method, worker, people, vector, paid, csprng, local, units, size)

    def _reply(self, request: StepRequest, payload: bytes) -> tuple[StepReply, Vector]:
        head = self.ledger.head
        reply = StepReply(
            slot=request.slot,
            epsilon_spent=self.ledger.epsilon_spent,
            epsilon_committed=self.ledger.epsilon_committed,
            ledger_rows=head.rows,
            ledger_head=head.hash,
        )
        return reply, np.frombuffer(payload, dtype="<f4").astype(np.float32)

    @property
    def wire(self) -> Wire:
        """How the vectors of the job in hand travel; what was released is rounded for free."""
        if self._job is None:
            raise ProtocolError("This site has made no offer.")
        return self._job.proposal.wire

    def close(self) -> None:
        """Remove the clear text of the records, and give the ledger back, in this order: whoever
        has the ledger next has the folder, too."""
        try:
            self._job = None
            vars(self).pop("_records", None)  # lets go of what is mapped of them
            if self._token_file is not None:
                self._token_file.close()
            shutil.rmtree(self._cache, ignore_errors=True)
        finally:
            self.ledger.close()
