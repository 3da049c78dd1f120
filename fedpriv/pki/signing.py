"""The key with which a site or a coordinator signs: Ed25519, in PEM, made on first use."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedpriv.errors import LedgerError
from fedpriv.pki.keys import private_pem
from fedpriv.secret import load_or_create_secret


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """Return the signing key in `path` (PEM, 0600), made on first use.

    If two processes make it at once, both get the same key.

    Raises:
        LedgerError: the file may be read by others, or does not hold an Ed25519 key.
    """
    pem = load_or_create_secret(
        path,
        lambda: private_pem(Ed25519PrivateKey.generate()),
        name="signing key",
        leaked="If someone else may have read it, move it away so that a new one is made, and"
        " tell those who verify your reports.",
    )
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise LedgerError(f"{path}: is not an unencrypted private key in PEM form.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise LedgerError(f"{path}: holds another kind of key than Ed25519.")
    return key
