"""A site: its records, its ledger, and the few things it will do for a server."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path

from fedpriv import protocol
from fedpriv.data.identity import identities
from fedpriv.data.population import Population, Tally, encode_population
from fedpriv.data.read import UNIT
from fedpriv.data.store import TokenFile
from fedpriv.errors import ConfigError, ProtocolError, StepFailedError
from fedpriv.files import private_folder
from fedpriv.models.vector import Vector, check_vector
from fedpriv.names import Wire
from fedpriv.pki.signing import load_or_create_key
from fedpriv.plugins import load_part
from fedpriv.privacy.ledger.ledger import Plan
from fedpriv.privacy.ledger.unit_index import UnitIndex
from fedpriv.privacy.mechanism.csprng import RandomSource, require_secret
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.private_training.batch_invariance import try_lengths
from fedpriv.private_training.local_steps import local_steps, new_update
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.private_step import private_step
from fedpriv.private_training.released import MaskedShare, Released, pack, unpack
from fedpriv.synthetic.records import SetChange
from fedpriv_client.disk_space import LedgerGrowth, reserve_disk_space, space_for_files
from fedpriv_client.handover import keep_adapter
from fedpriv_client.held_space import HeldSpace
from fedpriv_client.orders import Asked, Orders
from fedpriv_client.own_records import check_examples, read_records, refuse_empty
from fedpriv_client.proposals import KeptProposal, check_expiry, check_word, keep_proposal
from fedpriv_client.shared_slots import SharedSlots
from fedpriv_client.site_job import SiteJob, check_loaded, check_model, half_of, recipe_of
from fedpriv_client.site_ledger import open_or_create_ledger
from fedpriv_client.site_settings import SIGNING_KEY, SiteSettings, cache_folder
from fedpriv_client.ticks import at_ticks, preparation, until_tick

log = logging.getLogger(__name__)


class Site:
    """Answer proposals and step requests for one population of records.

    The constructor reads and checks the records, claims their units for the ledger, and reserves
    all the disk space that any job may need. So the administrator sees here whatever is wrong. From
    then on no answer to a server depends on what the records hold, except for the privatised
    vectors.

    Attributes:
        files: the disk space that is held for files beside an answer.
        notify: called with a proposal that is new and waits for a yes.
        distinct: statements that look-alikes in another ledger are different people; each is that
            ledger's data set, and who states it.

    Args:
        settings: the administrator's settings.
        pool: the workers that hold the model.
        csprng: makes the randomness of one slot, from the job's id and the slot's number. It is
            secret, unless the ledger's terms say that nothing here is private.

    Raises:
        DataError: the records can't be read, hold a label that is not declared, too few of them
            give an example, or the disk has no space for what the site's own limits allow.
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
        self.settings, self._pool, self._csprng = settings, pool, csprng
        self._lock = threading.Lock()  # one slot at a time, so that a repeat finds its reply
        self._job: SiteJob | None = None
        self.notify: Callable[[KeptProposal], None] = lambda kept: None
        self._held: list[HeldSpace] = []  # space on the disk
        self._token_files: list[TokenFile] = []  # training records', then held-out records'
        folder = private_folder(settings.state_dir)
        self._cache = cache_folder(folder)
        self.signing_key = load_or_create_key(folder / SIGNING_KEY)  # made before anything is paid
        self.ledger = open_or_create_ledger(settings)
        self.ledger.approvals = self._approvals
        try:
            shutil.rmtree(self._cache, ignore_errors=True)  # left by a killed process
            self._records = read_records(settings, self._cache)
            if not settings.terms.simulated and settings.model is not None:
                check_examples(settings, self._records)
            self.distinct = self._claim_units()
            self._reserve_disk_space()
            growth = self._growth = LedgerGrowth(settings, self.ledger)
            self._held.append(growth.space)
            self.files = space_for_files(settings)
            self._held.append(self.files)
            self._shared = SharedSlots(
                settings, self.ledger, self.signing_key, pool, csprng, growth
            )
        except BaseException:
            self.close()
            raise

    def _claim_units(self) -> list[tuple[str, str]]:
        """Claim the units, and return the statements about look-alikes that this rests on."""
        if not self.settings.lasting:  # no other ledger could share them
            return []
        terms, path = self.ledger.terms, self.ledger.path.resolve()
        return UnitIndex(path.parent).claim(
            terms.dataset_id,
            (identities(record, terms.unit) for part in self._records.as_read for record in part),
            file=path.name,
            begun=self.ledger.begun,
        )

    def _reserve_disk_space(self) -> None:
        settings, own, by_record = self.settings, self._records, self.ledger.terms.unit == "record"
        parts = [(own.training, self.ledger.terms.declared_size)]
        if settings.limits.evaluation:
            parts.append((own.held_out, settings.limits.held_out or 0))
        for records, declared in parts:
            units = len(records) if by_record else len(set(records[UNIT]))
            reserved = reserve_disk_space(settings, self._cache, max(units, declared))
            self._token_files.append(reserved)

    def consider(
        self, proposal: protocol.Proposal, signed: protocol.Signed | None = None
    ) -> protocol.Offer:
        """Check a proposal against the site's limits and budget. Nothing is committed yet.

        The model is loaded and the records are prepared for it. So whatever is wrong with the model
        shows before the first slot is paid.

        Args:
            signed: the coordinator's signature; it counts if an authority vouches for it.

        Raises:
            FedprivError: the site refuses, or waits for a person; the message is for the site
                alone.

        Privacy:
            Settings, the ledger's public rows and the model decide whether and how it refuses;
            records never do.
        """
        ledger, settings = self.ledger, self.settings
        plan = settings.limits.plan(proposal, ledger.terms)
        if (begun := ledger.plan(plan.job)) is not None:  # a job keeps what it began with
            plan = replace(plan, ticks=begun.ticks)
        if plan.ticks and settings.compute.devices > 1:
            problem = f"job {plan.job} began with public ticks, which are for one device only"
            fix = "Set it to 1 until the job is finished, or close the job."
            raise ConfigError(problem, key="compute.devices", fix=fix)
        signed = check_word(settings, proposal, signed, begun=begun is not None)
        epsilon, epsilon_alone = ledger.check_both(plan)
        settings.check_fields(proposal)
        came = None
        if settings.server is not None:
            came = KeptProposal(
                server=settings.server,
                first=datetime.now(UTC).replace(microsecond=0),
                committed=plan.as_row(),
                allocated=epsilon,
                allocated_alone=epsilon_alone,
                proposal=proposal,
                signed=signed,
            )
        self._ask_people(came, plan)
        with self._lock:
            if self._job is None or self._job.plan != plan:
                self._job = self._prepare(proposal, plan)
        head = ledger.head
        return protocol.Offer(
            site=settings.name,
            dataset_id=ledger.terms.dataset_id,
            declared_size=ledger.terms.declared_size,
            held_out_size=None if proposal.evaluation is None else settings.limits.held_out,
            delta=ledger.terms.delta,
            noise_multiplier=plan.noise_multiplier,
            epsilon=epsilon,
            epsilon_alone=epsilon_alone,
            budget=ledger.terms.budget,
            ledger_rows=head.rows,
            ledger_head=head.hash,
        )

    def _ask_people(self, came: KeptProposal | None, plan: Plan) -> None:
        """Keep a proposal for people to read and, if the site's file says so, wait for their yes.

        Raises:
            PausedError: this very proposal is not approved yet.
            ConfigError: the administrator's orders can't be read.
        """
        settings, new = self.settings, None
        orders, persons = Orders.read(settings.state_dir), (settings.approvers, settings.approvals)

        def is_decided(kept: KeptProposal) -> bool:
            said = orders.is_approved(self._asked(kept.plan), *persons) or orders.refuses(kept.job)
            return said or self.ledger.plan(kept.job) == kept.plan or kept.proposal.has_expired

        if came is not None:
            new = keep_proposal(settings, self.files, came, is_decided)
        if settings.ask:
            if new is not None and not orders.is_approved(self._asked(plan), *persons):
                self.notify(new)
            orders.check_approved(self._asked(plan), *persons)

    def _check_consent(self, job: SiteJob) -> None:
        """Check for each request what an offer rested on: time passes, and people take back a yes.

        Raises:
            PausedError: a person's yes is missing.
            StatementError: the last day to begin the job has passed.
        """
        settings, plan = self.settings, job.plan
        check_expiry(job.proposal, begun=self.ledger.plan(plan.job) is not None)
        if settings.ask:
            orders = Orders.read(settings.state_dir)
            orders.check_approved(self._asked(plan), settings.approvers, settings.approvals)

    def _asked(self, plan: Plan) -> Asked:
        return Asked(plan, self.ledger.terms.dataset_id, self.ledger.terms.delta)

    def _approvals(self, plan: Plan) -> list[dict[str, str]]:
        """Return what the ledger keeps about the named persons who approved a plan."""
        settings = self.settings
        if not (settings.ask and settings.approvers):
            return []
        key = sha256(b"fedpriv-approvals-1" + self.signing_key.private_bytes_raw()).digest()
        persons = Orders.read(settings.state_dir).persons(self._asked(plan), settings.approvers)
        return [one.as_row(key, plan.proposal) for one in persons]

    def _prepare(self, proposal: protocol.Proposal, plan: Plan) -> SiteJob:
        settings, half = self.settings, half_of(proposal)
        self._job = None  # else the older job's trials would be lost amid its steps
        check = partial(check_loaded, proposal=proposal, limits=settings.limits)
        recipe = recipe_of(proposal, settings)
        with self._pool.borrow(recipe, check) as worker:
            check_model(worker, proposal, plan, settings.limits, self.ledger.terms)
            if proposal.local is not None:
                new_update(proposal.local, worker.initial, worker)
            tokenizer = worker.base.tokenizer
        spec, own = settings.spec_of(proposal.model), self._records
        file, *further = self._token_files
        held_out: Population | None = None
        with until_tick(preparation(settings)) if plan.ticks else nullcontext():
            population = encode_population(own.training, spec, tokenizer, file, rows=own.rows)
            if proposal.evaluation is not None:
                held_out = encode_population(own.held_out, spec, tokenizer, further[0])
        if plan.numerics != "strict":  # under strict numerics each record is computed alone
            records = plan.sample_rate * self.ledger.terms.declared_size
            records *= self.ledger.terms.max_records_per_unit
            with self._pool.borrow(recipe, check) as worker:
                try_lengths(worker, records, proposal.steps, ticks=plan.ticks)
        if population.tally.without:
            log.warning("%s: %s", settings.name, population.tally.told)
        elif population.tally.cut:
            log.info("%s: %s", settings.name, population.tally.told)
        return SiteJob(proposal, plan, recipe, check, half, population, spec, tokenizer, held_out)

    def check_examples(self) -> Tally:
        """Check, in a simulation, that the present job has something to learn from the records.

        Raises:
            DataError: too few of them give an example.
        """
        assert self._job is not None
        refuse_empty(self.settings, self._job.population.tally)
        if self._job.held_out is not None:
            refuse_empty(self.settings, self._job.held_out.tally, held_out=True)
        return self._job.population.tally

    def step(
        self, request: protocol.StepRequest, vector: Vector, change: SetChange | None = None
    ) -> tuple[protocol.StepReply, Released] | protocol.Ready:
        """Answer the slots of a round or look: from the outbox, or else pay for them and compute.

        In a job with a secure sum nothing is paid or computed yet, and the answer is that the site
        is ready; `share` returns what it adds to the sum.

        Requests are answered one after the other. If two ask for the same slots, the second gets
        the reply of the first.

        Raises:
            FedprivError: refused before anything was sampled.
            StepFailedError: something failed after the sample was drawn.

        Privacy:
            The privatised vector leaves, with public figures of the ledger. The vector is paid by
            the slots' reservations before it is computed, and stored with their release before it
            is returned. The answer that a site is ready is made of public values and a random key.
        """
        with self._lock:
            return self._step(request, vector, change)

    def share(self, request: protocol.SetRequest) -> tuple[protocol.StepReply, MaskedShare]:
        """Return what this site adds to a secure sum; see `SharedSlots.share`."""
        with self._lock:
            if self._job is not None:
                self._check_consent(self._job)
            share = self._shared.share(self._job, request)
            return self._reply_with(share, request.slot), share

    def _step(
        self, request: protocol.StepRequest, vector: Vector, change: SetChange | None
    ) -> tuple[protocol.StepReply, Released] | protocol.Ready:
        ledger, job = self.ledger, self._job
        if job is None or job.proposal.job_id != request.job_id:
            raise ProtocolError(f"This site has made no offer for job {request.job_id!r}.")
        self._check_consent(job)
        slots = job.slots_of(request)
        ledger.check_witness(request.witness)
        csprng = partial(self._csprng, request.job_id)
        require_secret(csprng(request.slot), ledger.terms.private)
        stored = ledger.ask(job.plan, slots, digest := request.digest(vector))
        if stored is not None:
            return self._reply(request.slot, stored)
        if job.plan.is_shared:
            return self._shared.ready(job, request, vector, change, digest)
        self._growth.check()
        job.take_set(request, change)
        with self._pool.borrow(job.recipe, job.check) as worker:
            check_vector(vector, worker.vector.size)
            method = job.method_of(request, worker)
            execution = PlanExecution(job.plan, method.prepare(worker, vector))
            if request.centres is None:
                job.check_local(method, vector, execution.size)
            size, share = self._drawn_from(request)
            rate = share * job.plan.sample_rate
            timed = at_ticks(method, worker, job, vector, size, rate, ledger.terms)
            paid = ledger.pay(job.plan, slots, digest)
            try:
                given, people = (execution, timed, worker), job.population
                if request.centres is not None:
                    look = load_part("allow.evaluation").look
                    payload = pack(look(*given, job.held_out, vector, paid, csprng).value)
                elif (local := job.proposal.local) is None:
                    [slot] = paid
                    step = private_step(*given, people, vector, slot, csprng(slot.slot))
                    payload = pack(step.value)
                else:
                    units = job.plan.sample_rate * ledger.terms.declared_size
                    chain = local, units, job.proposal.training_steps
                    move = local_steps(*given, people, vector, paid, csprng, *chain)
                    payload = pack(move.value)
                ledger.release_all(paid, payload)
                return self._reply(request.slot, payload)
            except Exception as error:
                log.exception("%s: slot %d failed", self.settings.name, request.slot)
                raise StepFailedError("The lines above say where.") from error

    def _drawn_from(self, request: protocol.StepRequest) -> tuple[int, float]:
        """Return the declared number of units that a request draws from, as a person states it.

        Returns:
            That number, and the chance of each unit to be among those that may be drawn. A share
            does not hold out exactly that share of the units, because each is held out by its own
            hash. Records with the same text have the same hash, so all of them may be held out.
        """
        apart, terms = 1.0 if request.centres is None else self.settings.held_out, self.ledger.terms
        if isinstance(apart, float):
            return terms.declared_size, 1.0 if terms.unit == "record" else apart
        assert self.settings.limits.held_out is not None  # else there are no looks
        return self.settings.limits.held_out, 1.0

    def _reply(self, slot: int, payload: bytes) -> tuple[protocol.StepReply, Released]:
        released = unpack(payload)
        return self._reply_with(released, slot), released

    def _reply_with(self, released: Released | MaskedShare, slot: int) -> protocol.StepReply:
        head = self.ledger.head
        return protocol.StepReply(
            kind=released.kind,
            slot=slot,
            epsilon_spent=self.ledger.epsilon_spent,
            epsilon_committed=self.ledger.epsilon_committed,
            ledger_rows=head.rows,
            ledger_head=head.hash,
        )

    def take_adapter(self, handover: protocol.Handover, vector: Vector) -> Path:
        """Keep the adapter of a finished job in the site's folder, and return its path.

        Raises:
            FedprivError: it is not of a job of this site, or can't be kept.
            OSError: the disk fails.

        Privacy:
            The adapter is public by now. Whether it could be kept may depend on the disk, so only
            the site's own log says that: the server always hears the same.
        """
        with self._lock:
            held = sum(space.held for space in self._held)
            return keep_adapter(self.settings, self.ledger, self._pool, handover, vector, held)

    @property
    def wire(self) -> Wire:
        """Return the format of the present job's vectors. Rounding what was released is free."""
        if self._job is None:
            raise ProtocolError("This site has made no offer.")
        return self._job.proposal.wire

    def close(self) -> None:
        """Remove the clear text of the records, and then give the ledger back.

        The order matters, because the next process with the ledger has the folder, too.
        """
        try:
            self._job = None
            if shared := vars(self).get("_shared"):
                shared.forget()
            vars(self).pop("_records", None)  # releases their mapped memory
            for space in self._held:
                space.close()
            for file in self._token_files:
                file.close()
            shutil.rmtree(self._cache, ignore_errors=True)
        finally:
            self.ledger.close()
