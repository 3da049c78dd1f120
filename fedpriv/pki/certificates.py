"""Read and check the X.509 certificates of a federation's authority, server and sites.

Source:
    RFC 5280 (profile), RFC 9525 (a server is known by its subject alternative names alone).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedpriv.errors import EnrolmentError
from fedpriv.pki.keys import PublicKey, fingerprint, is_p256
from fedpriv.pki.points import in_groups

Use = Literal["server", "site"]
SOON = timedelta(days=30)  # time before its end in which to renew a certificate
USAGES: dict[Use, x509.ObjectIdentifier] = {
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "site": ExtendedKeyUsageOID.CLIENT_AUTH,
}
_ISSUED_FOR = {oid: use for use, oid in USAGES.items()}
_MALFORMED = (
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True)
class Description:
    """Hold what a certificate says.

    Attributes:
        name: the common name; in a site's certificate, the site's name.
        use: server or site; None for an authority.
        names: the host names and addresses of a server.
        fingerprint: the public key's fingerprint.
        starts, expires: in UTC.
    """

    name: str
    use: Use | None
    names: tuple[str, ...]
    fingerprint: str
    starts: datetime
    expires: datetime


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate in PEM."""
    return certificate.public_bytes(Encoding.PEM)


def load_certificate(path: Path) -> x509.Certificate:
    """Load the certificate in `path` (PEM).

    Raises:
        EnrolmentError: it can't be read, or holds no certificate.
    """
    try:
        return parse_certificate(path.read_bytes(), path)
    except OSError as error:
        raise EnrolmentError(f"{path}: the certificate can't be read: {error.strerror}.") from None


def parse_certificate(pem: bytes, path: Path) -> x509.Certificate:
    """Parse a certificate from PEM bytes that came from `path`.

    Raises:
        EnrolmentError: it is not of a kind that fedpriv makes.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        describe(certificate)
    except (ValueError, x509.InvalidVersion):
        raise EnrolmentError(
            f"{path}: is not a certificate that fedpriv made, or was cut short. Copy it again."
        ) from None
    return certificate


def describe(certificate: x509.Certificate) -> Description:
    """Return what `certificate` says; `check_certificate` checks that it is true.

    Raises:
        ValueError: it is not of a kind that fedpriv makes.
    """
    try:
        name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        extensions = certificate.extensions
        is_ca = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        use: Use | None = None
        if not is_ca:
            [usage] = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            use = _ISSUED_FOR[usage]
        key = certificate.public_key()
        if not is_p256(key):
            raise TypeError("its key is not of P-256")
    except (IndexError, KeyError, TypeError, UnsupportedAlgorithm, *_MALFORMED) as error:
        raise ValueError(f"a certificate of another kind: {error}") from None
    return Description(
        name=str(name),
        use=use,
        names=_names(extensions) if use == "server" else (),
        fingerprint=fingerprint(key),
        starts=certificate.not_valid_before_utc,
        expires=certificate.not_valid_after_utc,
    )


def _names(extensions: x509.Extensions) -> tuple[str, ...]:
    try:
        found = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(one.value) for one in found)


def check_certificate(
    certificate: x509.Certificate,
    ca: x509.Certificate,
    *,
    use: Use,
    path: Path,
    key: PublicKey | None = None,
    now: datetime | None = None,
) -> Description:
    """Check that `ca` vouches for `certificate` now, and return what it says.

    Args:
        path: where it came from, for the message.
        key: the public key that it must have.
        now: the time to check at; default: this machine's clock.

    Raises:
        EnrolmentError: it is not signed by `ca`, is for another use, has expired, is not valid yet,
            or has another key; says which, and what to do.
    """
    found, now = describe(certificate), now or datetime.now(UTC)
    if describe(ca).use is not None or not _is_signed(certificate, ca):
        raise EnrolmentError(
            f"{path}: was not issued by the authority {in_groups(fingerprint(ca.public_key()))}."
            " It is of another federation, or files of two enrolments were mixed. Copy the whole"
            " enrolment again."
        )
    if found.use != use:
        raise EnrolmentError(
            f"{path}: is a certificate for a {found.use or 'federation'}, not for a {use}."
            " Copy the whole enrolment again."
        )
    for checked in (found, describe(ca)):
        _check_dates(checked, path, now)
    if key is not None and found.fingerprint != fingerprint(key):
        raise EnrolmentError(
            f"{path}: belongs to another private key ({in_groups(found.fingerprint)}, not"
            f" {in_groups(fingerprint(key))}). Use key and certificate of the same enrolment."
        )
    return found


def _is_signed(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _check_dates(found: Description, path: Path, now: datetime) -> None:
    whose = "authority's certificate" if found.use is None else "certificate"
    if now < found.starts:
        raise EnrolmentError(
            f"{path}: the {whose} is valid from {found.starts:%Y-%m-%d %H:%M} UTC, and this"
            f" machine's clock says {now:%Y-%m-%d %H:%M} UTC. Set the clock."
        )
    if now > found.expires:
        who = {"site": found.name, "server": "server", None: ""}[found.use]
        fix = (
            f"The coordinator renews it with fedpriv provision FILE --renew {who}."
            if who
            else "The coordinator has to provision a new federation."
        )
        raise EnrolmentError(
            f"{path}: the {whose} expired on {found.expires:%Y-%m-%d %H:%M} UTC. {fix}"
        )
