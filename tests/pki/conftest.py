"""A federation's authority, and enrolments of two sites and of a namesake elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fedpriv.pki.certificates import certificate_pem
from fedpriv.pki.document import write_document
from fedpriv.pki.keys import PrivateKey, new_key, write_key
from fedpriv_server.authority import (
    authority_certificate,
    new_manifest,
    server_certificate,
    sign_manifest,
    site_certificate,
)

NOW = datetime.now(UTC)
NAMES = ("fed.example.org", "127.0.0.1")


@dataclass(frozen=True)
class Authority:
    key: PrivateKey
    certificate: x509.Certificate
    federation: str

    @classmethod
    def new(cls, federation: str, days: int = 100, now: datetime = NOW) -> Authority:
        key = new_key()
        return cls(
            key, authority_certificate(key, federation, "hearts", days=days, now=now), federation
        )

    def enrolment(self, folder: Path, name: str, days: int = 10) -> Path:
        """An enrolment in `folder`, with its key; returns the path of its manifest."""
        folder.mkdir()
        key = new_key()
        made = site_certificate(
            self.certificate, self.key, key.public_key(), name, days=days, now=NOW
        )
        manifest = new_manifest(
            self.certificate,
            made,
            federation=self.federation,
            federation_name="hearts",
            address="fed.example.org:8443",
            names=NAMES,
            now=NOW,
        )
        write_key(folder / "site.key", key)
        (folder / "ca.crt").write_bytes(certificate_pem(self.certificate))
        (folder / "site.crt").write_bytes(certificate_pem(made))
        write_document(folder / "enrolment.json", sign_manifest(manifest, self.key))
        return folder / "enrolment.json"

    def pair(
        self, folder: Path, use: str, *, now: datetime = NOW, days: int = 10
    ) -> tuple[Path, Path]:
        """Paths of a certificate and its key."""
        folder.mkdir(exist_ok=True)
        key = new_key()
        public = key.public_key()
        if use == "server":
            made = server_certificate(self.certificate, self.key, public, NAMES, days=days, now=now)
        else:
            made = site_certificate(
                self.certificate, self.key, public, "cardiology", days=days, now=now
            )
        certificate, private = folder / f"{use}.crt", folder / f"{use}.key"
        certificate.write_bytes(certificate_pem(made))
        write_key(private, key, replace=True)
        return certificate, private


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority.new("a" * 32, now=NOW - timedelta(days=50))


@pytest.fixture(scope="session")
def other() -> Authority:
    """Of the same name, of another federation."""
    return Authority.new("b" * 32)
