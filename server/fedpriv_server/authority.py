"""The federation's own authority, in the folder that `fedpriv provision` keeps.

    federation.json  random id and name
    ca.crt, ca.key   its certificate, and its private key: needed to sign, never to serve
    server.crt, server.key, sites.json, enrolments/NAME/…

A server needs ``ca.crt``, ``server.crt``, ``server.key`` and ``sites.json``, so that ``ca.key`` and
the enrolments, which may hold sites' keys, can be kept on another machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from cryptography import x509
from pydantic import AwareDatetime

from fedpriv.errors import EnrolmentError
from fedpriv.files import private_folder, write_atomic
from fedpriv.names import Name
from fedpriv.pki.certificates import certificate_pem, load_certificate
from fedpriv.pki.document import read_document, write_document
from fedpriv.pki.enrolment import Federation, Manifest
from fedpriv.pki.keys import (
    PrivateKey,
    PublicKey,
    fingerprint,
    is_encrypted,
    load_key,
    new_key,
    write_key,
)
from fedpriv.section import Section
from fedpriv_server.issue import (
    authority_certificate,
    server_certificate,
    sign_manifest,
    site_certificate,
)
from fedpriv_server.site_keys import SiteKeys

AUTHORITY_DAYS = 3650
_NEEDED = ("ca.key", "ca.crt", "federation.json", "sites.json")  # in the order they are made
_LATER = ("sites.json", "server.key", "enrolments")
_FIX = "Restore it from a backup: a new one would be another federation."

Passphrase = Callable[[], bytes]


class FederationFile(Section):
    """The content of ``federation.json``."""

    format: Literal[1] = 1
    federation: Federation
    name: Name
    created: AwareDatetime


class Authority:
    """An authority that exists: `Authority.open` or `Authority.create` it.

    Attributes:
        federation, name: the federation's id, and the name it had when it was made.
        certificate: the authority's own.
        fingerprint: what sites compare over another channel.
        site_keys: the federation's sites.
    """

    def __init__(self, folder: Path, passphrase: Passphrase) -> None:
        self.folder, self._passphrase = folder, passphrase
        about = read_document(folder / "federation.json", FederationFile, fix=_FIX)
        self.federation, self.name = about.federation, about.name
        self.certificate = load_certificate(folder / "ca.crt")
        self.fingerprint = fingerprint(self.certificate.public_key())
        self.site_keys = SiteKeys.read(folder / "sites.json")

    @staticmethod
    def exists(folder: Path) -> bool:
        """Tell whether `folder` holds a federation.

        Raises:
            EnrolmentError: it holds part of one.
        """
        missing = [name for name in _NEEDED if not (folder / name).exists()]
        if not missing:
            return True
        if any((folder / name).exists() for name in _LATER):
            raise EnrolmentError(f"{folder / missing[0]}: is missing. {_FIX}")
        return False  # of a set-up that was cut short, nothing has been used yet

    @classmethod
    def create(
        cls, folder: Path, name: str, *, passphrase: Passphrase, encrypt: bool, now: datetime
    ) -> Authority:
        """Make the authority of a new federation, without sites.

        Raises:
            EnrolmentError: there is a key that can't be read.
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
        about = FederationFile(federation=federation, name=name, created=now.replace(microsecond=0))
        write_document(folder / "federation.json", about)
        SiteKeys(folder / "sites.json").write()
        return cls(folder, passphrase)

    @cached_property
    def key(self) -> PrivateKey:
        """The authority's private key; asks for its passphrase, if it has one.

        Raises:
            EnrolmentError: it can't be read, or is not the key of ``ca.crt``.
        """
        path = self.folder / "ca.key"
        key = load_key(path, self._passphrase)
        if fingerprint(key.public_key()) != self.fingerprint:
            raise EnrolmentError(f"{path}: is not the key of ca.crt. {_FIX}")
        return key

    @property
    def is_encrypted(self) -> bool:
        """Whether ``ca.key`` asks for a passphrase."""
        return is_encrypted((self.folder / "ca.key").read_bytes())

    def encrypt(self, passphrase: bytes) -> None:
        """Put the same key under a passphrase."""
        write_key(self.folder / "ca.key", self.key, passphrase=passphrase, replace=True)

    def certify_site(
        self, key: PublicKey, name: str, *, days: int, now: datetime
    ) -> x509.Certificate:
        return site_certificate(self.certificate, self.key, key, name, days=days, now=now)

    def certify_server(
        self, key: PublicKey, names: tuple[str, ...], *, days: int, now: datetime
    ) -> x509.Certificate:
        return server_certificate(self.certificate, self.key, key, names, days=days, now=now)

    def sign(self, manifest: Manifest) -> Manifest:
        return sign_manifest(manifest, self.key)
