"""The set of a slot: who is in the sum, as every site of it checks for itself."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field

from fedpriv.errors import SetError
from fedpriv.files import canonical_json
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv.section import Section
from fedpriv.secure_sum.ready import Member, SlotId, check_member
from fedpriv.secure_sum.roster import Roster

Bits = Literal[16, 32]  # bits of a value that travels
_LABEL = "fedpriv-set-1"


class MemberSet(Section):
    """The sites whose shares are added up in a slot, as the server names them.

    Attributes:
        slot_id: the slot's id as this site knows it; never the server's word.
        members: the members, in the order of their names.
        bits: the bits of a value: sums are modulo 2^bits.
    """

    slot_id: SlotId
    members: tuple[Member, ...] = Field(min_length=1, max_length=MAX_MEMBERS)
    bits: Bits

    def check(self, roster: Roster, own: Member) -> None:
        """Check that a share may be masked for this set.

        Args:
            roster: the one that this site's file names.
            own: what this site said when it was ready, with the key that it still holds.

        Raises:
            SetError: it may not. The error says what is wrong. Nothing may be released for such a
                set.
        """
        names = [member.name for member in self.members]
        if len(names) > len(roster):
            raise SetError(f"Expected at most the {len(roster)} sites of the roster.")
        if names != sorted(set(names)):
            raise SetError("Expected each site of a set once, in the order of names.")
        if own not in self.members:
            raise SetError("Expected this site's own entry in the set, as it was sent.")
        for member in self.members:
            check_member(member, roster, self.slot_id)

    @property
    def tag(self) -> str:
        """τ in 64 hex digits: the digest of everything that the sum is about."""
        about = [_LABEL, self.slot_id.proposal, self.slot_id.slot, self.slot_id.request]
        whose = [[member.name, member.key] for member in self.members]
        return hashlib.sha256(canonical_json([*about, self.bits, whose])).hexdigest()

    def __len__(self) -> int:
        return len(self.members)
