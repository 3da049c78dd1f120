"""Hide a site's share under a stream for each other member, which cancels in the sum of all.

Of two members, the one with the lesser name adds their stream and the other subtracts it.

Source:
    Bonawitz et al. 2017, section 4 (masks in pairs); RFC 7748 (X25519), RFC 5869 (HKDF), NIST SP
    800-38A (CTR).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedpriv.errors import SetError
from fedpriv.privacy.usual import MAX_MEMBERS
from fedpriv.secure_sum.members import Bits, MemberSet
from fedpriv.secure_sum.ready import Ephemeral

BLOCK = 1 << 16  # values: their stream stays in the cache
DTYPES: dict[Bits, np.dtype[Any]] = {16: np.dtype("<u2"), 32: np.dtype("<u4")}
Share = npt.NDArray[np.int64]
Masked = np.ndarray[tuple[int], np.dtype[Any]]  # uint16 or uint32, little-endian
_PAD = 16  # update_into may ask for a cipher block more than it writes


def mask(share: Share, name: str, ephemeral: Ephemeral, members: MemberSet) -> Masked:
    """Mask a site's share, (P,), with the set's number of bits, so that it may be sent.

    Only the sum over all members of the set, modulo 2^bits, tells anything of the shares. In a set
    of one there is nothing to hide behind: what comes back is the share, so its own noise has to be
    all that the claim needs.

    Args:
        share: (P,) in steps of the grid, with its noise. It is only read.
        name: this site's name.
        ephemeral: the key of the site's entry in the set. It is forgotten here, whatever happens:
            two shares under the same streams would tell their difference.
        members: after `MemberSet.check`.

    Raises:
        SetError: the set has no entry of that name and key, or a key of low order.
        ShareLostError: the key was used before.

    Privacy:
        Leaves the site as part of an event that the ledger holds. Masks hide a share as far as
        one honest member more than the observers' is in the set, AES-256 is a pseudorandom
        function, and X25519 hides what it agrees on. They are no noise.
    """
    try:
        streams = _streams(name, ephemeral, members)
    finally:
        ephemeral.forget()
    dtype = DTYPES[members.bits]
    masked: Masked = np.empty(share.size, dtype)
    zeros = bytes(min(BLOCK, share.size) * dtype.itemsize)
    buffer = bytearray(len(zeros) + _PAD)
    for start in range(0, share.size, BLOCK):
        block = masked[start : start + BLOCK]
        block[:] = share[start : start + BLOCK].astype(dtype)  # modulo 2^bits, also below 0
        for stream, adds in streams:
            stream.update_into(memoryview(zeros)[: block.nbytes], buffer)
            values = np.frombuffer(buffer, dtype, block.size)
            (np.add if adds else np.subtract)(block, values, out=block)
    return masked


def _streams(
    name: str, ephemeral: Ephemeral, members: MemberSet
) -> list[tuple[CipherContext, bool]]:
    """Return a keystream for each other member, and whether it is added."""
    own = {member.name: member.key for member in members.members}.get(name)
    if own != ephemeral.public:
        raise SetError("Expected this site's own key in the set.")
    salt = bytes.fromhex(members.tag)
    streams = []
    for member in members.members:
        if member.name != name:
            info = _LABEL_FRAMED + b"".join(map(_framed, sorted((name, member.name))))
            key = HKDF(SHA256(), 32, salt, info).derive(ephemeral.agree(member.key))
            cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
            streams.append((cipher.encryptor(), name < member.name))
    return streams


@lru_cache(maxsize=MAX_MEMBERS)  # each site of a simulation names all of them
def _framed(name: str) -> bytes:
    """Return a name after its length, so that no other names read the same."""
    part = name.encode()
    return len(part).to_bytes(2, "big") + part


_LABEL_FRAMED = _framed("fedpriv-mask-1")
