"""What a coordinator hands to a site, and how the site checks that it is complete.

    enrolment.json  who it is for, where the server is, digests of the next two; signed by the
                    authority
    ca.crt          the authority's certificate
    site.crt        the site's certificate
    site.key        its private key, if the coordinator made it; else it never left the site
    site.toml       the site's own file, for its administrator to fill in; not signed

The signature shows that the files belong together. Whether the authority is the coordinator's own,
people have to check once, by comparing `Manifest.ca` over another channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import AwareDatetime, Field

from fedpriv.errors import EnrolmentError
from fedpriv.files import canonical_json, sha256
from fedpriv.names import Address, Digest, Name
from fedpriv.pki.certificates import check_certificate, parse_certificate
from fedpriv.pki.document import read_bytes, read_document
from fedpriv.pki.keys import PrivateKey, fingerprint, is_p256, load_key
from fedpriv.section import Section

AGAIN = "Copy the whole enrolment again, as the coordinator sent it."
Federation = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Manifest(Section):
    """Hold the content of ``enrolment.json``. Nothing in it is secret."""

    format: Literal[1] = 1
    federation: Federation = Field(description="random; federations of one name are told apart")
    federation_name: Name
    site: Name
    address: Address = Field(description="host:port that the site dials")
    names: tuple[str, ...] = Field(description="in the server's certificate")
    ca: Digest = Field(description="fingerprint of the authority's public key")
    files: dict[Literal["ca.crt", "site.crt"], Digest] = Field(min_length=2)
    issued: AwareDatetime
    expires: AwareDatetime = Field(description="with the site's certificate")
    signature: str = Field("", pattern=r"^([0-9a-f]{2})*$", description="ECDSA by the authority")


@dataclass(frozen=True)
class Enrolment:
    """Hold an enrolment whose parts belong together, with the site's key.

    Attributes:
        ca, certificate: in PEM.
        key: the private key; the server knows the site by its public half.
    """

    manifest: Manifest
    ca: bytes
    certificate: bytes
    key: PrivateKey


def is_signed(manifest: Manifest, ca: x509.Certificate) -> bool:
    """Tell whether nothing in `manifest` has changed since this authority signed it."""
    key = ca.public_key()
    if not is_p256(key):
        return False
    try:
        signature = bytes.fromhex(manifest.signature)
        key.verify(signature, signed_bytes(manifest), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def signed_bytes(manifest: Manifest) -> bytes:
    """Return what the authority signs: the canonical JSON of everything else."""
    return canonical_json(manifest.model_dump(mode="json", exclude={"signature"}))


def read_enrolment(
    path: Path,
    *,
    key: Path,
    ca: Path | None = None,
    certificate: Path | None = None,
    now: datetime | None = None,
) -> Enrolment:
    """Read the enrolment whose manifest is `path`, and check every part against the others.

    Args:
        key: the site's private key.
        ca, certificate: default to ``ca.crt`` and ``site.crt`` beside the manifest.
        now: the time to check at; default: this machine's clock.

    Raises:
        EnrolmentError: a part is missing, damaged, edited, expired, from another enrolment, or in a
            newer format; names the file and what to do.
    """
    paths: dict[Literal["ca.crt", "site.crt"], Path] = {
        "ca.crt": ca or path.with_name("ca.crt"),
        "site.crt": certificate or path.with_name("site.crt"),
    }
    manifest = read_document(path, Manifest, fix=AGAIN)
    content = {name: read_bytes(part, AGAIN) for name, part in paths.items()}
    for name, part in paths.items():
        if sha256(content[name]) != manifest.files[name]:
            raise EnrolmentError(
                f"{part}: does not belong to {path}: one of them was edited, cut short, or is of"
                f" another enrolment or federation. {AGAIN}"
            )
    authority = parse_certificate(content["ca.crt"], paths["ca.crt"])
    own = parse_certificate(content["site.crt"], paths["site.crt"])
    if fingerprint(authority.public_key()) != manifest.ca or not is_signed(manifest, authority):
        raise EnrolmentError(f"{path}: was changed after the coordinator signed it. {AGAIN}")
    private = load_key(key)
    checked = check_certificate(
        own, authority, use="site", path=paths["site.crt"], key=private.public_key(), now=now
    )
    if checked.name != manifest.site or manifest.expires < (now or datetime.now(UTC)):
        raise EnrolmentError(f"{path}: does not belong to its certificate, or has expired. {AGAIN}")
    return Enrolment(manifest, content["ca.crt"], content["site.crt"], private)
