"""The federation's own authority: the folder that `fedpriv provision` keeps, and what it issues.

    ca.crt, ca.key   its certificate, and its private key: needed to sign, never to serve
    server.crt, server.key, sites.json, enrolments/NAME/…

A server needs only ``ca.crt``, ``server.crt``, ``server.key`` and ``sites.json``. So ``ca.key`` and
the enrolments, which may hold sites' keys, can be kept on another machine.

Source:
    RFC 5280 (profile), RFC 9525 (a server is identified by subject alternative names alone).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedpriv.errors import EnrolmentError
from fedpriv.files import private_folder, sha256, write_atomic
from fedpriv.pki.certificates import USAGES, Use, certificate_pem, describe, load_certificate
from fedpriv.pki.enrolment import Manifest, signed_bytes
from fedpriv.pki.keys import (
    PrivateKey,
    PublicKey,
    fingerprint,
    load_key,
    new_key,
    write_key,
)
from fedpriv_server.site_keys import SiteKeys

AUTHORITY_DAYS = 3650
CLOCK_SKEW = timedelta(minutes=5)  # a new certificate is valid at once where clocks lag
_NEEDED = ("ca.key", "ca.crt", "sites.json")  # in the order they are made
_SUBJECT = "fedpriv federation "  # then the federation's id
_LATER = ("sites.json", "server.key", "enrolments")
_FIX = "Restore it from a backup: a new one would be another federation."

Passphrase = Callable[[], bytes]


class Authority:
    """An authority that exists. `Authority.create` makes a new one.

    Attributes:
        federation, name: the federation's id, and the name it had when it was made.
        certificate: the authority's own certificate.
        fingerprint: what sites compare over another channel.
        site_keys: the federation's sites.
    """

    def __init__(self, folder: Path, passphrase: Passphrase) -> None:
        self.folder, self._passphrase = folder, passphrase
        self.certificate = load_certificate(folder / "ca.crt")
        self.name = _organization(self.certificate)
        self.federation = describe(self.certificate).name.removeprefix(_SUBJECT)
        self.fingerprint = fingerprint(self.certificate.public_key())
        self.site_keys = SiteKeys.read(folder / "sites.json")

    @staticmethod
    def exists(folder: Path) -> bool:
        """Tell whether `folder` holds a federation.

        Raises:
            EnrolmentError: the folder holds only part of a federation.
        """
        missing = [name for name in _NEEDED if not (folder / name).exists()]
        if not missing:
            return True
        if any((folder / name).exists() for name in _LATER):
            raise EnrolmentError(f"{folder / missing[0]}: is missing. {_FIX}")
        return False  # a set-up was cut short, and nothing of it has been used yet

    @classmethod
    def create(
        cls, folder: Path, name: str, *, passphrase: Passphrase, encrypt: bool, now: datetime
    ) -> Authority:
        """Make the authority of a new federation, without sites.

        Raises:
            EnrolmentError: the folder holds a key that can't be read.
            OSError: the folder can't be written.
        """
        private_folder(folder)
        write_atomic(folder / ".gitignore", "*\n")
        if not (folder / "ca.key").exists():
            write_key(folder / "ca.key", new_key(), passphrase=passphrase() if encrypt else None)
        key = load_key(folder / "ca.key", passphrase)
        federation = secrets.token_hex(16)
        certificate = authority_certificate(key, federation, name, days=AUTHORITY_DAYS, now=now)
        write_atomic(folder / "ca.crt", certificate_pem(certificate))
        SiteKeys(folder / "sites.json").write()
        return cls(folder, passphrase)

    @cached_property
    def key(self) -> PrivateKey:
        """The authority's private key. Reading it asks for the passphrase, if the key has one.

        Raises:
            EnrolmentError: the key can't be read, or is not the key of ``ca.crt``.
        """
        path = self.folder / "ca.key"
        key = load_key(path, self._passphrase)
        if fingerprint(key.public_key()) != self.fingerprint:
            raise EnrolmentError(f"{path}: is not the key of ca.crt. {_FIX}")
        return key


def authority_certificate(
    key: PrivateKey, federation: str, name: str, *, days: int, now: datetime
) -> x509.Certificate:
    """Make the authority's certificate. It may sign certificates and enrolments, no authorities.

    Args:
        federation: random id, which tells authorities of the same `name` apart.
    """
    subject = _subject(name, _SUBJECT + federation)
    builder = _builder(subject, key.public_key(), now, now + timedelta(days=days))
    return (
        builder.issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def server_certificate(
    ca: x509.Certificate,
    ca_key: PrivateKey,
    key: PublicKey,
    names: Sequence[str],
    *,
    days: int,
    now: datetime,
) -> x509.Certificate:
    """Make the server's certificate for exactly these host names and IP addresses."""
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    builder = _issued(ca, key, "fedpriv server", "server", days, now)
    return builder.add_extension(alternatives, critical=False).sign(ca_key, hashes.SHA256())


def site_certificate(
    ca: x509.Certificate, ca_key: PrivateKey, key: PublicKey, name: str, *, days: int, now: datetime
) -> x509.Certificate:
    """Make a site's certificate; its common name is the site's name."""
    return _issued(ca, key, name, "site", days, now).sign(ca_key, hashes.SHA256())


def _issued(
    ca: x509.Certificate, key: PublicKey, name: str, use: Use, days: int, now: datetime
) -> x509.CertificateBuilder:
    expires = min(now + timedelta(days=days), ca.not_valid_after_utc)
    signer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(_subject(_organization(ca), name), key, now, expires)
        .issuer_name(ca.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGES[use]]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False
        )
    )


def _builder(
    subject: x509.Name, key: PublicKey, now: datetime, expires: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _subject(organization: str, name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _organization(ca: x509.Certificate) -> str:
    return str(ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


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
    """Make the manifest of an enrolment with these certificates. `sign_manifest` then signs it."""
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
    """Return a copy with the authority's signature over the canonical JSON of all other fields."""
    signature = ca_key.sign(signed_bytes(manifest), ec.ECDSA(hashes.SHA256()))
    return manifest.model_copy(update={"signature": signature.hex()})
