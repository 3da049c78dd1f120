"""Accept public keys of 32 bytes only if somebody can hold a private key to them.

The library that signs and agrees on keys accepts any 32 bytes as a public key. Keys of low order
give everybody the same secret, and signatures that fit any text. Keys that are not on the curve
give none. So an Ed25519 key that comes from a file, a message or a command line goes through
`verifying_key`.

Source:
    RFC 8032, section 5.1.3 (decoding); RFC 7748, sections 4.1 (from one curve to the other) and
    6.1 (the check for zero).
"""

from __future__ import annotations

from functools import lru_cache
from textwrap import wrap
from typing import Annotated

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from pydantic import AfterValidator, Field

from fedpriv.privacy.usual import MAX_MEMBERS

RawKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_ANY = X25519PrivateKey.from_private_bytes(bytes(32))  # all scalars are multiples of the cofactor


@lru_cache(maxsize=MAX_MEMBERS)  # each site of a simulation gets the keys of all
def is_exchange_key(raw: bytes) -> bool:
    """Tell whether `raw` (32 bytes) is an X25519 public key that is not of low order."""
    try:
        _ANY.exchange(X25519PublicKey.from_public_bytes(raw))
    except ValueError:
        return False
    return True


def is_signing_key(raw: bytes) -> bool:
    """Tell whether `raw` (32 bytes) is an Ed25519 public key: on the curve, not of low order."""
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    if not 1 < y < _P:
        return False
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P  # the square of x; -1/d is no square
    if pow(square, (_P - 1) // 2, _P) != 1:
        return False
    u = (1 + y) * pow(1 - y, -1, _P) % _P
    return is_exchange_key(u.to_bytes(32, "little"))


@lru_cache(maxsize=MAX_MEMBERS)
def verifying_key(public: str) -> Ed25519PublicKey:
    """Return the Ed25519 public key of 64 hex digits.

    Raises:
        ValueError: no key has these digits, or it is of low order.
    """
    raw = bytes.fromhex(public)
    if len(raw) != 32 or not is_signing_key(raw):
        raise ValueError("is not an Ed25519 public key to which anybody has a private one")
    return Ed25519PublicKey.from_public_bytes(raw)


def is_signed(content: bytes, signature: str, public: str) -> bool:
    """Tell whether the key `public` signed these bytes. Key and signature are in hex, untrusted."""
    try:
        verifying_key(public).verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def in_groups(key: str) -> str:
    """Return a signing key, or another key's digest, for people: all digits, in groups of four."""
    digits = key.removeprefix("sha256:")
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


def in_rows(key: str) -> list[str]:
    """Return the same in two rows, for reading out."""
    return wrap(in_groups(key), 39)


def _checked(public: str) -> str:
    verifying_key(public)
    return public


VerifyingKey = Annotated[RawKey, AfterValidator(_checked)]
