"""The slots of a secure sum at a site: those it is ready for, and those it gave its share to.

The key of a slot is only in this process's memory. A crash loses the key, and with it the slot:
nobody can then add up the shares of the set's other sites.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.errors import ConfigError, ShareLostError, StepFailedError
from fedpriv.models.vector import Vector, check_vector
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.private_step import shared_step
from fedpriv.private_training.released import MaskedShare, pack_share, unpack_share
from fedpriv.protocol import Ready, SetRequest, StepRequest
from fedpriv.secure_sum.masks import mask
from fedpriv.secure_sum.members import MemberSet
from fedpriv.secure_sum.ready import Ephemeral, Member, SlotId, sign_member
from fedpriv.synthetic.records import SetChange
from fedpriv_client.disk_space import LedgerGrowth
from fedpriv_client.site_job import SiteJob
from fedpriv_client.site_settings import SiteSettings
from fedpriv_client.ticks import at_ticks

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ReadySlot:
    """Hold a slot for which a site said that it is ready. Nothing was sampled for it yet.

    Attributes:
        vector: the request's vector, public.
        key: a key for this slot alone; its private half must not leave.
        member: what this site says about itself, signed.
    """

    slot_id: SlotId
    vector: Vector
    key: Ephemeral
    member: Member


class SharedSlots:
    """Say that a site is ready for a slot, and give its share once the set of sites is known.

    Only one thread at a time may use it, as with its site.

    Raises:
        ConfigError: the roster has another key for this site.
    """

    def __init__(
        self,
        settings: SiteSettings,
        ledger: Ledger,
        signing_key: Ed25519PrivateKey,
        pool: WorkerPool,
        csprng: Callable[[str, int], RandomSource],
        growth: LedgerGrowth,
    ) -> None:
        self._name, self._roster = settings.name, settings.limits.roster
        own = signing_key.public_key().public_bytes_raw().hex()
        if self._roster is not None and (known := self._roster.key_of(self._name)) != own:
            problem = f"does not have the key with which this site, {self._name!r}, signs"
            fix = (
                "Send the coordinator this site's entry (fedpriv-client roster-entry), and"
                " compare the new roster with the other sites."
            )
            raise ConfigError(problem, key="secure_sum.roster", value=known, fix=fix)
        self._ledger, self._signing_key = ledger, signing_key
        self._pool, self._csprng, self._growth = pool, csprng, growth
        self._slot: ReadySlot | None = None  # the newest

    def ready(
        self,
        job: SiteJob,
        request: StepRequest,
        vector: Vector,
        change: SetChange | None,
        digest: str,
    ) -> Ready:
        """Say that the site is ready for a slot, after all checks that cost nothing.

        Raises:
            ShareLostError: the slot was paid for and not released, for example because its
                computation failed. It is not sampled again.
            FedprivError: the site refuses.

        Privacy:
            Free: public values, a new random key and a signature. Nothing is sampled yet.
        """
        if self._ledger.request_of(job.plan.job, request.slot) is not None:
            raise ShareLostError(f"Slot {request.slot} was begun before, and is void.")
        slot_id = SlotId(proposal=job.plan.proposal, slot=request.slot, request=digest)
        if self._slot is None or self._slot.slot_id != slot_id:
            self.forget()  # its public records may be replaced below
            self._growth.check()
            job.take_set(request, change)
            with self._pool.borrow(job.recipe, job.check) as worker:
                check_vector(vector, worker.vector.size)
            key = Ephemeral()
            member = sign_member(self._signing_key, slot_id, self._name, key)
            self._slot = ReadySlot(slot_id, vector, key, member)
        return Ready(slot=request.slot, member=self._slot.member)

    def share(self, job: SiteJob | None, request: SetRequest) -> MaskedShare:
        """Return what this site adds to the sum of a set: from the outbox, or paid and computed.

        Args:
            job: the job that the site works on.

        Raises:
            SlotError: the slot gave its share to another set, and keeps that set for ever.
            ShareLostError: this site is no longer ready for the slot, for example after a crash.
            SetError: the site may not add up with this set; another set may still come.
            StepFailedError: something failed after the sample was drawn.

        Privacy:
            Nothing is sampled before the set of the slot's sum is known. The masked share is stored
            with the tag of that set before it is returned, and a slot has one set for ever. The
            share alone is not privatised; see docs/explanation/secure-sum.md.
        """
        if (stored := self._stored(request)) is not None:
            return stored
        ready = self._slot
        if ready is None or self._roster is None or ready.slot_id.slot != request.slot:
            raise ShareLostError(f"Slot {request.slot} has no key here any more.")
        asked = request.job_id, ready.slot_id.proposal
        if job is None or (job.plan.job, job.plan.proposal) != asked:
            raise ShareLostError(f"This site is at another job than {request.job_id!r}.")
        members = _set(ready.slot_id, request)
        members.check(self._roster, ready.member)
        self._growth.check()
        return self._computed(job, ready, members)

    def _stored(self, request: SetRequest) -> MaskedShare | None:
        """Return the share that was given to the sum of this set, if there is one."""
        job, slot = request.job_id, request.slot
        plan, paid_for = self._ledger.plan(job), self._ledger.request_of(job, slot)
        if plan is None or paid_for is None:
            return None
        slot_id = SlotId(proposal=plan.proposal, slot=slot, request=paid_for)
        stored = self._ledger.share(job, slot, _set(slot_id, request).tag)
        return None if stored is None else unpack_share(stored)

    def _computed(self, job: SiteJob, ready: ReadySlot, members: MemberSet) -> MaskedShare:
        """Pay, sample, add up, add noise, mask and store. After any failure the key is gone."""
        slot, vector = ready.slot_id.slot, ready.vector
        request, one = ready.slot_id.request, range(slot, slot + 1)
        self._ledger.ask(job.plan, one, request)  # raises before anything costs time
        with self._pool.borrow(job.recipe, job.check) as worker:
            method = job.half.at(worker)
            execution = PlanExecution(job.plan, method.prepare(worker, vector))
            terms, rate = self._ledger.terms, job.plan.sample_rate
            timed = at_ticks(method, worker, job, vector, terms.declared_size, rate, terms)
            [paid] = self._ledger.pay(job.plan, one, request)
            csprng, people = self._csprng(job.plan.job, slot), job.population
            try:
                size = len(members)
                noisy = shared_step(execution, timed, worker, people, vector, paid, csprng, size)
                share = MaskedShare(mask(noisy.values, self._name, ready.key, members))
                self._ledger.release(paid, pack_share(share), members.tag)
                return share
            except Exception as error:
                log.exception("%s: slot %d failed", self._name, slot)
                raise StepFailedError("The lines above say where.") from error
            finally:
                self.forget()

    def forget(self) -> None:
        """Forget the newest slot's key, if there is one."""
        if self._slot is not None:
            self._slot.key.forget()
        self._slot = None


def _set(slot_id: SlotId, request: SetRequest) -> MemberSet:
    return MemberSet(slot_id=slot_id, members=request.members, bits=request.bits)
