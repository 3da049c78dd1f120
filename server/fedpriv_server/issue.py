"""Issue certificates of a federation's authority, server and sites, and manifests of enrolments.

Source:
    RFC 5280 (profile), RFC 9525 (a server is known by its subject alternative names alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedpriv.files import sha256
from fedpriv.pki.certificates import USAGES, Use, certificate_pem, describe
from fedpriv.pki.enrolment import Manifest, signed_bytes
from fedpriv.pki.keys import PrivateKey, PublicKey, fingerprint

CLOCK_SKEW = timedelta(minutes=5)  # a certificate made here is at once good where clocks lag


def authority_certificate(
    key: PrivateKey, federation: str, name: str, *, days: int, now: datetime
) -> x509.Certificate:
    """Make the authority's certificate; it may sign certificates and enrolments, no authorities.

    Args:
        federation: random id, by which authorities of the same `name` are told apart.
    """
    subject = _subject(name, f"fedpriv federation {federation}")
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
    """Make the server's certificate, for these host names and IP addresses and no others."""
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
    builder = _issued(ca, key, "fedpriv server", "server", days, now)
    return builder.add_extension(alternatives, critical=False).sign(ca_key, hashes.SHA256())


def site_certificate(
    ca: x509.Certificate,
    ca_key: PrivateKey,
    key: PublicKey,
    name: str,
    *,
    days: int,
    now: datetime,
) -> x509.Certificate:
    """Make a site's certificate; its common name is the site's name."""
    return _issued(ca, key, name, "site", days, now).sign(ca_key, hashes.SHA256())


def _issued(
    ca: x509.Certificate, key: PublicKey, name: str, use: Use, days: int, now: datetime
) -> x509.CertificateBuilder:
    organization = ca.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value
    expires = min(now + timedelta(days=days), ca.not_valid_after_utc)
    signer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(_subject(str(organization), name), key, now, expires)
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
    """Make the manifest of an enrolment with these certificates; `sign_manifest` makes it count."""
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
    """Return a copy that carries the authority's signature over the canonical JSON of the rest."""
    signature = ca_key.sign(signed_bytes(manifest), ec.ECDSA(hashes.SHA256()))
    return manifest.model_copy(update={"signature": signature.hex()})
