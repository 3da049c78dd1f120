"""The slots of a secure sum at a site: from its word that it is ready to its share of the sum.

What is held of a slot in between is in this process's memory alone. A crash loses it, and with it
the slot, which stays paid for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.errors import ConfigError, SetError, ShareLostError, SlotError, StepFailedError
from fedpriv.privacy.ledger.ledger import Ledger, Reservation
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.execution import HeldSum, PlanExecution
from fedpriv.protocol import Ready, SetRequest
from fedpriv.secure_sum.masks import mask
from fedpriv.secure_sum.members import MemberSet
from fedpriv.secure_sum.ready import Ephemeral, Member, SlotId, sign_member
from fedpriv.secure_sum.roster import Roster
from fedpriv.training.released import MaskedShare, pack_share, unpack_share

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class HeldSlot:
    """A slot that is paid for, whose exact sum waits to be told whom it is added up with.

    Attributes:
        slot_id: what the sum is about.
        csprng: made its sample, and will make its noise.
        key: of this slot alone.
        member: what this site says of itself, signed.

    Privacy:
        Private, but for `member`: public values, chance, and a signature of these.
    """

    slot_id: SlotId
    paid: Reservation
    execution: PlanExecution
    total: HeldSum
    csprng: RandomSource
    key: Ephemeral
    member: Member

    def share(self, members: MemberSet, roster: Roster) -> MaskedShare:
        """What this site adds to the sum of a set: noise that is drawn now, under all masks.

        Raises:
            SetError: the set is not one that the site may add up with. Nothing was drawn.
        """
        members.check(roster, self.member)
        noisy = self.execution.share(self.total, len(members), self.csprng)
        return MaskedShare(mask(noisy.values, self.member.name, self.key, members))


class SharedSlots:
    """What a site holds of its newest slot of a secure sum, and what it gives of it.

    Args:
        name, signing_key: of the site, as in the roster.
        roster: of those whom it may be added up with; None if it adds up with nobody.

    Raises:
        ConfigError: the roster has another key of this site.
    """

    def __init__(
        self, ledger: Ledger, name: str, signing_key: Ed25519PrivateKey, roster: Roster | None
    ) -> None:
        own = signing_key.public_key().public_bytes_raw().hex()
        if roster is not None and roster.key_of(name) != own:
            raise ConfigError(
                f"has another key of site {name!r} than this site signs with",
                key="secure_sum.roster",
                value=roster.key_of(name),
                fix="Send the coordinator this site's entry (fedpriv-client roster-entry), and"
                " compare the new roster with the other sites.",
            )
        self._ledger, self._name = ledger, name
        self._signing_key, self._roster = signing_key, roster
        self._held: HeldSlot | None = None

    def ready(self, slot_id: SlotId) -> Ready | None:
        """That the sum of a slot is here, if it is."""
        if self._held is None or self._held.slot_id != slot_id:
            return None
        return Ready(slot=slot_id.slot, member=self._held.member)

    def hold(
        self, paid: Reservation, execution: PlanExecution, total: HeldSum, csprng: RandomSource
    ) -> Ready:
        """Keep the sum of a slot until it is known whom it is added up with.

        Privacy:
            What is returned holds nothing that was computed from records.
        """
        self.forget()
        proposal, request = execution.plan.proposal, paid.request_digest
        slot_id, key = SlotId(proposal=proposal, slot=paid.slot, request=request), Ephemeral()
        member = sign_member(self._signing_key, slot_id, self._name, key)
        self._held = HeldSlot(slot_id, paid, execution, total, csprng, key, member)
        return Ready(slot=paid.slot, member=member)

    def share(self, request: SetRequest) -> MaskedShare:
        """What this site adds to the sum of a set: from the outbox, or else what is held for it.

        Raises:
            SlotError: the slot is not reserved, or gave its share to another set.
            ShareLostError: the sum of the slot is not here any more, as after a crash.
            SetError: the set is not one that the site may add up with; another may still come.
            StepFailedError: something failed after the noise was drawn, and the share is lost.

        Privacy:
            A slot has one set for ever: the masked share is stored with the set's tag before it
            is returned. It is not privatised by itself; see docs/secure-sum.md.
        """
        ledger, job, slot = self._ledger, request.job_id, request.slot
        plan, digest = ledger.plan(job), ledger.request_of(job, slot)
        if plan is None or digest is None or not plan.is_shared:
            raise SlotError(f"Slot {slot} of job {job!r} is not reserved for a secure sum.")
        slot_id = SlotId(proposal=plan.proposal, slot=slot, request=digest)
        members = MemberSet(slot_id=slot_id, members=request.members, bits=request.bits)
        stored = ledger.share(job, slot, members.tag)
        if stored is not None:
            return unpack_share(stored.content)
        held, roster = self._held, self._roster
        if held is None or held.slot_id != slot_id or roster is None:
            raise ShareLostError(f"The sum of slot {slot} of job {job!r} is not here any more.")
        try:
            share = held.share(members, roster)
            ledger.release(held.paid, pack_share(share), members.tag)
        except SetError:
            raise
        except Exception as error:
            self.forget()
            log.exception("%s: the share of slot %d failed", self._name, slot)
            raise StepFailedError() from error
        self.forget()
        return share

    def forget(self) -> None:
        """Let go of what is held of a slot, if anything is."""
        if self._held is not None:
            self._held.key.forget()
        self._held = None
