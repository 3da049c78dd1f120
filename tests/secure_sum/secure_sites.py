"""Sites that are ready for a slot, for the tests of secure sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedpriv.secure_sum.masks import mask
from fedpriv.secure_sum.members import Bits, MemberSet
from fedpriv.secure_sum.ready import Ephemeral, Member, SlotId, sign_member
from fedpriv.secure_sum.roster import Roster, RosterEntry
from fedpriv.secure_sum.total import Total

SLOT = SlotId(proposal="sha256:" + "a" * 64, slot=3, request="sha256:" + "b" * 64)
OTHER_SLOTS = {
    "proposal": SLOT.model_copy(update={"proposal": "sha256:" + "c" * 64}),
    "slot": SLOT.model_copy(update={"slot": 4}),
    "request": SLOT.model_copy(update={"request": "sha256:" + "c" * 64}),
}
LOW_ORDER = (  # of the X25519 keys, in the form that every one has: below 2^255 − 19
    bytes(32).hex(),
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
)


@dataclass
class SecureSite:
    """A site with its keys, and what it says when it is ready for `SLOT`."""

    name: str
    signing_key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    ephemeral: Ephemeral = field(default_factory=Ephemeral)

    @property
    def entry(self) -> RosterEntry:
        key = self.signing_key.public_key().public_bytes_raw().hex()
        return RosterEntry(name=self.name, public_key=key)

    def member(self, slot_id: SlotId = SLOT) -> Member:
        return sign_member(self.signing_key, slot_id, self.name, self.ephemeral)


def sites(*names: str) -> list[SecureSite]:
    return [SecureSite(name) for name in names]


def roster_of(listed: list[SecureSite]) -> Roster:
    return Roster.of(site.entry for site in listed)


def set_of(listed: list[SecureSite], bits: Bits = 16, slot_id: SlotId = SLOT) -> MemberSet:
    """Of these sites, in the order of their names."""
    ordered = sorted((site.member(slot_id) for site in listed), key=lambda member: member.name)
    return MemberSet(slot_id=slot_id, members=tuple(ordered), bits=bits)


def masked_by(site: SecureSite, share: Any, members: MemberSet) -> Any:
    """What the site would send."""
    return mask(np.asarray(share, np.int64), site.name, site.ephemeral, members)


def total_of(masked: list[Any], bits: Bits = 16) -> Any:
    """What a server makes of masked shares."""
    total = Total(masked[0].size, bits)
    for values in masked:
        total.add([(slice(0, values.size), values)])
    return signed(total)


def signed(total: Total) -> Any:
    """The whole sum, (P,)."""
    return np.concatenate([values for _, values in total.signed_blocks()])
