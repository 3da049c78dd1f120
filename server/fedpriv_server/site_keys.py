"""``sites.json``: which sites there are, their keys, and which sites are revoked.

`fedpriv provision` writes it. A running server reads it, again whenever it has changed. It
holds no secret, but anybody who can change it decides which sites are let in.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from pydantic import AwareDatetime, PlainSerializer, PlainValidator

from fedpriv.errors import EnrolmentError
from fedpriv.names import Digest, Name
from fedpriv.pki.certificates import certificate_pem, describe, parse_certificate
from fedpriv.pki.document import read_bytes, read_document, write_document
from fedpriv.pki.keys import public_pem
from fedpriv.pki.points import in_groups
from fedpriv.section import Section

Made = Literal["here", "site"]
Status = Literal["waiting", "active", "expired", "revoked"]
_FIX = "Restore it from a backup: without it, revoked sites can't be told from others."


def _parsed(value: object) -> x509.Certificate:
    if isinstance(value, x509.Certificate):
        return value
    try:
        return parse_certificate(str(value).encode(), Path("certificate"))
    except EnrolmentError as error:
        raise ValueError(str(error)) from None


Certificate = Annotated[
    x509.Certificate,
    PlainValidator(_parsed),
    PlainSerializer(lambda made: certificate_pem(made).decode()),
]


class Site(Section):
    """A site as the coordinator knows it.

    Attributes:
        key_made: where its private key was made: "here", by the coordinator, or at the "site".
        certificate: its certificate; None while the site's request is awaited.
        revoked: when the site was revoked; None if it was not.
        retired: fingerprints of keys that it had before; none is ever accepted again.
    """

    name: Name
    key_made: Made
    certificate: Certificate | None = None
    revoked: AwareDatetime | None = None
    retired: tuple[Digest, ...] = ()

    @property
    def public_key(self) -> bytes | None:
        """The public key in PEM, by which Flower knows a node."""
        return None if self.certificate is None else public_pem(self.certificate.public_key())

    @property
    def fingerprint(self) -> str | None:
        return None if self.certificate is None else describe(self.certificate).fingerprint

    @property
    def expires(self) -> datetime | None:
        return None if self.certificate is None else self.certificate.not_valid_after_utc

    def status(self, now: datetime | None = None) -> Status:
        """Return the status of the site. Only an active site may take part."""
        if self.revoked is not None:
            return "revoked"
        if self.expires is None:
            return "waiting"
        return "active" if (now or datetime.now(UTC)) <= self.expires else "expired"


class SiteKeys:
    """Holds the sites of a federation. `SiteKeys.read` reads them.

    Attributes:
        sites: name → site.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sites: dict[str, Site] = {}
        self._content: bytes | None = None

    @classmethod
    def read(cls, path: Path) -> SiteKeys:
        """Read the keys that `path` holds.

        Raises:
            EnrolmentError: the file can't be read, is damaged, or contradicts itself.
        """
        site_keys = cls(path)
        site_keys.reload_if_changed()
        return site_keys

    def reload_if_changed(self) -> bool:
        """Read the file again if it has changed. Return whether it had.

        Raises:
            EnrolmentError: see `read`; the sites stay as they were.
        """
        content = read_bytes(self.path, _FIX)
        if content == self._content:
            return False
        sites = read_document(self.path, _File, fix=_FIX).sites
        _check(sites, self.path)
        self.sites, self._content = {site.name: site for site in sites}, content
        return True

    def admissible(self, now: datetime | None = None) -> list[Site]:
        """Return the sites that may take part: neither revoked, nor expired, nor still awaited."""
        return [site for site in self.sites.values() if site.status(now) == "active"]

    def write(self, *sites: Site) -> None:
        """Add these sites, or replace those of the same names, in the file and in memory.

        Raises:
            EnrolmentError: two sites would have the same key, or a site a retired one.
        """
        after = self.sites | {site.name: site for site in sites}
        _check(tuple(after.values()), self.path)
        write_document(self.path, _File(sites=tuple(after.values())))
        self.sites, self._content = after, read_bytes(self.path, _FIX)


class _File(Section):
    format: Literal[1] = 1
    sites: tuple[Site, ...]


def _check(sites: tuple[Site, ...], path: Path) -> None:
    """Check that names are unique and in their certificates, and no key is shared or retired."""
    retired = {one for site in sites for one in site.retired}
    names: set[str] = set()
    keys: set[str] = set()
    for site in sites:
        if site.name in names:
            raise EnrolmentError(f"{path}: holds site {site.name!r} twice. {_FIX}")
        names.add(site.name)
        if site.certificate is None or site.fingerprint is None:
            continue
        found = describe(site.certificate)
        if (found.name, found.use) != (site.name, "site"):
            raise EnrolmentError(
                f"{path}: the certificate of site {site.name!r} is for {found.name!r}. {_FIX}"
            )
        if site.fingerprint in retired:
            raise EnrolmentError(
                f"{path}: the key {in_groups(site.fingerprint)} of site {site.name!r} was"
                " retired, and a retired key is never accepted again. Make a new one."
            )
        if site.fingerprint in keys:
            raise EnrolmentError(
                f"{path}: site {site.name!r} has the key {in_groups(site.fingerprint)} of"
                " another site. Make a new one."
            )
        keys.add(site.fingerprint)
