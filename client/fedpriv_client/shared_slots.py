"""The slots of a secure sum at a site: for what it is ready, and what it gave its share to.

The key of a slot is in this process's memory alone. A crash loses it, and with it the slot: the
other sites of the set then have shares that nobody can add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.errors import ConfigError, ShareLostError
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.protocol import Ready, SetRequest
from fedpriv.secure_sum.members import MemberSet
from fedpriv.secure_sum.ready import Ephemeral, Member, SlotId, sign_member
from fedpriv.secure_sum.roster import Roster
from fedpriv.training.released import MaskedShare, unpack_share


@dataclass(frozen=True, eq=False)
class ReadySlot:
    """A slot for which a site said that it is ready. Nothing was sampled for it yet.

    Attributes:
        vector: of the request, public.
        key: of this slot alone; its private half must not leave.
        member: what this site says of itself, signed.
    """

    slot_id: SlotId
    vector: Vector
    key: Ephemeral
    member: Member


class SharedSlots:
    """The newest slot that a site is ready for, and the shares that it gave.

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
        self._slot: ReadySlot | None = None

    def known(self, slot_id: SlotId) -> Ready | None:
        """What was said of a slot, if it is the newest."""
        if self._slot is None or self._slot.slot_id != slot_id:
            return None
        return Ready(slot=slot_id.slot, member=self._slot.member)

    def make_ready(self, slot_id: SlotId, vector: Vector) -> Ready:
        """Say that this site is ready for a slot, with a new key.

        Privacy:
            Free: made of public values and chance.
        """
        self.forget()
        key = Ephemeral()
        member = sign_member(self._signing_key, slot_id, self._name, key)
        self._slot = ReadySlot(slot_id, vector, key, member)
        return Ready(slot=slot_id.slot, member=member)

    def find(self, request: SetRequest) -> MaskedShare | tuple[ReadySlot, MemberSet]:
        """The share that was given to the sum of a set; or the slot, to make it, and the set.

        Raises:
            SlotError: the slot gave its share to another set, with which it stays for ever.
            ShareLostError: this site is not ready for the slot any more, as after a crash.
            SetError: the set is not one that the site may add up with; another may still come.

        Privacy:
            Free: nothing here reads a record. Whoever makes the share stores it with the tag of
            the set, before it leaves.
        """
        ledger, job, slot = self._ledger, request.job_id, request.slot
        plan, paid_for, held = ledger.plan(job), ledger.request_of(job, slot), self._slot
        if plan is not None and paid_for is not None:
            slot_id = SlotId(proposal=plan.proposal, slot=slot, request=paid_for)
            stored = ledger.share(job, slot, _set(slot_id, request).tag)
            if stored is not None:
                return unpack_share(stored.content)
        if held is None or self._roster is None or held.slot_id.slot != slot:
            raise ShareLostError(f"Slot {slot} of job {job!r} has no key here any more.")
        members = _set(held.slot_id, request)
        members.check(self._roster, held.member)
        return held, members

    def forget(self) -> None:
        """Let go of the newest slot's key, if there is one."""
        if self._slot is not None:
            self._slot.key.forget()
        self._slot = None


def _set(slot_id: SlotId, request: SetRequest) -> MemberSet:
    return MemberSet(slot_id=slot_id, members=request.members, bits=request.bits)
