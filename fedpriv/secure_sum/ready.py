"""A site that is ready for a slot: its key for that slot alone, signed with the key in the roster.

Privacy:
    What leaves is a random public key, public digests and a signature of them. The private half
    stays in the memory of the process that made it, and is good for one masked share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from pydantic import Field

from fedpriv.errors import SetError, ShareLostError
from fedpriv.files import canonical_json
from fedpriv.names import Digest, Name
from fedpriv.pki.points import RawKey, is_exchange_key, is_signed
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv.secret import Secret
from fedpriv.section import Section
from fedpriv.secure_sum.roster import Roster

_LABEL = "fedpriv-ready-1"


class SlotId(Section):
    """The subject of a sum: the same at every site in it.

    Attributes:
        proposal: the digest of the job's proposal, with its noise, clip norm and roster.
        slot: the job's slot.
        request: the digest of the step request, with the vector that gradients are taken at.
    """

    proposal: Digest
    slot: int = Field(ge=0)
    request: Digest


class Ephemeral(Secret):
    """A fresh X25519 key pair, for one slot and one masked share.

    Attributes:
        public: the public half, in 64 hex digits.

    Privacy:
        The private half can't be read, pickled or copied. Python may leave bytes of it in memory
        that is free; after `forget` no object holds it.
    """

    __slots__ = ("_key", "public")

    def __init__(self) -> None:
        self._key: X25519PrivateKey | None = X25519PrivateKey.generate()
        self.public: str = self._key.public_key().public_bytes_raw().hex()

    def agree(self, public: str) -> bytes:
        """Return the secret (32 bytes) that this key and another site's `public` (hex) share.

        Raises:
            SetError: `public` is of low order: everybody knows that secret.
            ShareLostError: the private half was forgotten.
        """
        if self._key is None:
            raise ShareLostError("The key of this slot was used or forgotten: the slot is void.")
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))
        except ValueError:
            raise SetError("Expected the keys of a set to be X25519 public keys.") from None

    def forget(self) -> None:
        """Drop the private half, for good."""
        self._key = None


class Member(Section):
    """A site of a set: what it says when ready, and what the others then see of it."""

    name: Name
    key: RawKey = Field(description="X25519, raw, in hex: for this slot alone")
    signature: Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]


def sign_member(
    signing_key: Ed25519PrivateKey, slot_id: SlotId, name: str, ephemeral: Ephemeral
) -> Member:
    """Sign what a site says when it is ready for a slot.

    Privacy:
        Leaves the site; nothing in it comes from records.
    """
    signature = signing_key.sign(_signed_bytes(slot_id, name, ephemeral.public))
    return Member(name=name, key=ephemeral.public, signature=signature.hex())


def check_member(member: Member, roster: Roster, slot_id: SlotId) -> None:
    """Check that a site of the roster made this key, for this slot.

    Raises:
        SetError: it is not in the roster, the key is of low order, or the signature is another
            site's, or of another key, slot, request or proposal.
    """
    known = roster.key_of(member.name)
    if known is None:
        raise SetError(f"Expected sites of the roster; {member.name!r} is not in it.")
    if not is_exchange_key(bytes.fromhex(member.key)):
        raise SetError(f"Expected an X25519 public key of site {member.name!r}.")
    _check_signature(member, known, slot_id)


@lru_cache(maxsize=MAX_MEMBERS)  # each site of a simulation checks all signatures
def _check_signature(member: Member, public_key: str, slot_id: SlotId) -> None:
    if not is_signed(_signed_bytes(slot_id, member.name, member.key), member.signature, public_key):
        raise SetError(
            f"The signature of site {member.name!r} is not by its key in the roster, for this"
            " slot, request and proposal."
        )


def _signed_bytes(slot_id: SlotId, name: str, key: str) -> bytes:
    return canonical_json([_LABEL, slot_id.proposal, slot_id.slot, slot_id.request, name, key])
