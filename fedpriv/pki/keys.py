"""Private keys: P-256, in PEM, each in a file that only its owner may read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from fedpriv.errors import EnrolmentError
from fedpriv.files import sha256, write_atomic
from fedpriv.secret import create_secret, load_secret

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


def new_key() -> PrivateKey:
    """Make a fresh P-256 key from the operating system's generator."""
    return ec.generate_private_key(ec.SECP256R1())


def is_p256(key: PublicKeyTypes) -> TypeGuard[PublicKey]:
    """Tell whether a public key is of the only kind that enrolments and certificates have.

    The curve has prime order, so only the point at infinity is of low order. The library refuses
    that one, and all that is no point of the curve.
    """
    return isinstance(key, PublicKey) and isinstance(key.curve, ec.SECP256R1)


def write_key(
    path: Path, key: PrivateKey, *, passphrase: bytes | None = None, replace: bool = False
) -> None:
    """Write `key` (PKCS#8 PEM, mode 0600), encrypted if there is a passphrase.

    Raises:
        EnrolmentError: there is a key already, and `replace` is false.
        OSError: it can't be written.
    """
    if replace:
        write_atomic(path, private_pem(key, passphrase), mode=0o600)
        return
    try:
        create_secret(path, private_pem(key, passphrase))
    except FileExistsError:
        raise EnrolmentError(
            f"{path}: is there already, and a key is never overwritten. Move it away if it is"
            " not used."
        ) from None


def load_key(path: Path, passphrase: Callable[[], bytes] | None = None) -> PrivateKey:
    """Load the private key in `path`.

    Args:
        passphrase: called only if the key is encrypted.

    Raises:
        EnrolmentError: no such file, others may read or change it, it is not a P-256 key in PEM, or
            it is encrypted and `passphrase` does not give the right one.
    """
    pem = load_secret(
        path,
        name="private key",
        leaked="If someone else may have read it, have it replaced by a new one.",
        error=EnrolmentError,
    )
    secret = passphrase() if passphrase is not None and is_encrypted(pem) else None
    try:
        key = load_pem_private_key(pem, password=secret)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise EnrolmentError(
            f"{path}: can't be read as a private key in PEM form: it was cut short, or is encrypted"
            " and no passphrase or another one was given."
        ) from None
    if not isinstance(key, PrivateKey) or not is_p256(key.public_key()):
        raise EnrolmentError(
            f"{path}: holds another kind of key than P-256. Use the one fedpriv made."
        )
    return key


def is_encrypted(pem: bytes) -> bool:
    """Tell whether a private key's PEM asks for a passphrase."""
    return b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem


def private_pem(key: PrivateKeyTypes, passphrase: bytes | None = None) -> bytes:
    """Return the PKCS#8 PEM of a key. It is secret unless a secret passphrase encrypts it."""
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def public_pem(key: PublicKeyTypes) -> bytes:
    """Return the SubjectPublicKeyInfo PEM: the bytes by which Flower knows a node."""
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def fingerprint(key: PublicKeyTypes) -> str:
    """Return ``sha256:`` and the hex digest of the SubjectPublicKeyInfo in DER, for comparing.

    Source:
        RFC 7469, section 2.4 (the digest; there in base64).
    """
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return sha256(der)
