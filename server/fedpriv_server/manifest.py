"""Make and sign the manifest of a site's enrolment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedpriv.files import sha256
from fedpriv.pki.certificates import certificate_pem, describe
from fedpriv.pki.enrolment import Manifest, signed_bytes
from fedpriv.pki.keys import PrivateKey, fingerprint


def new_manifest(
    ca: x509.Certificate,
    certificate: x509.Certificate,
    *,
    federation: str,
    federation_name: str,
    address: str,
    names: Sequence[str],
    now: datetime,
) -> Manifest:
    """The manifest of an enrolment with these certificates; `sign_manifest` makes it count."""
    site = describe(certificate)
    return Manifest(
        federation=federation,
        federation_name=federation_name,
        site=site.name,
        address=address,
        names=tuple(names),
        ca=fingerprint(ca.public_key()),
        files={
            "ca.crt": sha256(certificate_pem(ca)),
            "site.crt": sha256(certificate_pem(certificate)),
        },
        issued=now.replace(microsecond=0),
        expires=site.expires,
    )


def sign_manifest(manifest: Manifest, ca_key: PrivateKey) -> Manifest:
    """A copy that carries the authority's signature over the canonical JSON of the rest."""
    signature = ca_key.sign(signed_bytes(manifest), ec.ECDSA(hashes.SHA256()))
    return manifest.model_copy(update={"signature": signature.hex()})
