"""Which 32 bytes are public keys that somebody can hold a private key to.

The library that signs and agrees on keys takes any 32 bytes for a public key. Those of low order
give everybody the same signature or secret; those beside the curve, none.

Source:
    RFC 8032, section 5.1.3 (decoding); RFC 7748, sections 4.1 (from one curve to the other) and
    6.1 (the check for zero).
"""

from __future__ import annotations

from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedpriv.privacy.usual import MAX_MEMBERS

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_ANY = X25519PrivateKey.from_private_bytes(bytes(32))  # all scalars are multiples of the cofactor


@lru_cache(maxsize=MAX_MEMBERS)  # each site of a simulation is shown the keys of all
def is_exchange_key(raw: bytes) -> bool:
    """Whether `raw` (32 bytes) is an X25519 public key that is not of low order."""
    try:
        _ANY.exchange(X25519PublicKey.from_public_bytes(raw))
    except ValueError:
        return False
    return True


def is_signing_key(raw: bytes) -> bool:
    """Whether `raw` (32 bytes) is an Ed25519 public key: on the curve, and not of low order."""
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    if not 1 < y < _P:
        return False
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P  # of x; -1/d is no square
    if pow(square, (_P - 1) // 2, _P) != 1:
        return False
    u = (1 + y) * pow(1 - y, -1, _P) % _P
    return is_exchange_key(u.to_bytes(32, "little"))
