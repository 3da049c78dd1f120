"""The dossier's file: a zip archive that has only one form.

    manifest.json    the names and digests of all other files, in their order
    signature.json   Ed25519 over the bytes of the manifest
    …                the files

Files are stored, not compressed, in that order, with one date and without comments. So the same
files and the same key give the same bytes on any machine. A reader makes the archive anew from
what it read, and accepts the file only if the bytes are the same. So nothing can hide between
files, behind the last one, or under a name that is there twice. Nothing grows when it is unpacked.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, ValidationError

from fedpriv.documents import malformed
from fedpriv.errors import AlteredError, DossierError, SignerError
from fedpriv.files import canonical_json, sha256
from fedpriv.names import Digest
from fedpriv.pki.points import in_groups, is_signed
from fedpriv.report.budget import Signature, signature
from fedpriv.section import Section

MANIFEST, SIGNATURE = "manifest.json", "signature.json"
MAX_BYTES = 256 << 20  # bytes of a dossier; a thousand sites with a thousand steps each have less
MAX_FILES = 10_000
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip archive can have
_FIX = "Get it again, whole and unchanged, from whoever sent it."
# What `zipfile` raises for bytes that are no archive, or only nearly one.
_DAMAGED = (
    *(zipfile.BadZipFile, struct.error, RuntimeError, ValueError, OSError, EOFError),
    *(OverflowError, KeyError),
)


class Listed(Section):
    """One file of a dossier."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,199}$")]
    digest: Digest


class Manifest(Section):
    """The content of ``manifest.json``."""

    format: Literal["fedpriv-dossier-1"] = "fedpriv-dossier-1"
    files: tuple[Listed, ...] = Field(max_length=MAX_FILES)


@dataclass(frozen=True)
class Package:
    """A dossier whose bytes are the signed ones.

    Attributes:
        signer: the public key that signed it, in hex; the file can't say whose key that is.
        files: name → content, without manifest and signature.
    """

    signer: str
    files: Mapping[str, bytes]


def pack(files: Mapping[str, bytes], key: Ed25519PrivateKey) -> bytes:
    """Return the bytes of a signed dossier with these files.

    Raises:
        DossierError: it would be larger than what is read (`MAX_BYTES`).
    """
    listed = tuple(Listed(name=name, digest=sha256(data)) for name, data in files.items())
    manifest = canonical_json(Manifest(files=listed).model_dump(mode="json"))
    signed = canonical_json(signature(manifest, key).model_dump(mode="json"))
    content = _archive([(MANIFEST, manifest), (SIGNATURE, signed), *files.items()])
    if len(content) > MAX_BYTES:
        raise DossierError(
            f"The dossier would have {len(content):,} bytes, more than the {MAX_BYTES:,} that are"
            " read. Leave out the rows of ledgers that are very long."
        )
    return content


def read(path: Path, signer: str | None = None) -> Package:
    """Read the dossier in a file; see `unpack`.

    Raises:
        DossierError: the file can't be read.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise DossierError(f"{path}: can't be read: {error.strerror}.") from None
    return unpack(content, path, signer)


def unpack(content: bytes, path: Path, signer: str | None = None) -> Package:
    """Return the files of a dossier, after checking that each is what was signed.

    Args:
        path: the dossier's path, for messages.
        signer: public key that has to have signed it, in hex; None accepts any key.

    Raises:
        AlteredError: a byte is not what was signed, or the content is no dossier at all.
        SignerError: another key signed it.
    """
    if len(content) > MAX_BYTES:
        raise AlteredError(f"{path}: has more than {MAX_BYTES:,} bytes. No dossier has. {_FIX}")
    entries = _entries(content, path)
    if [name for name, _ in entries[:2]] != [MANIFEST, SIGNATURE]:
        raise AlteredError(f"{path}: does not begin with {MANIFEST} and {SIGNATURE}. {_FIX}")
    (_, signed), (_, signed_by), *files = entries
    key = _check_signature(signed, signed_by, path)
    if signer is not None and key != signer.lower():
        raise SignerError(
            f"{path}: is signed by key {in_groups(key)}, not by the expected {in_groups(signer)}."
            " Ask the coordinator, not by the way on which the file came, which key is its own."
        )
    _check_files(signed, files, path)
    return Package(key, dict(files))


def _entries(content: bytes, path: Path) -> list[tuple[str, bytes]]:
    """Return name and content of each file, if the archive is in the one allowed form."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = archive.infolist()
            stored = all(info.compress_type == zipfile.ZIP_STORED for info in found)
            if not stored or len(found) > MAX_FILES + 2:
                raise AlteredError(f"{path}: its files are compressed, or too many. {_FIX}")
            if sum(info.file_size for info in found) > len(content):
                raise AlteredError(f"{path}: its files overlap, or are cut short. {_FIX}")
            entries = [(info.filename, archive.read(info)) for info in found]
        whole = _archive(entries)
    except _DAMAGED as error:
        raise AlteredError(f"{path}: was altered, or is no dossier ({error}). {_FIX}") from None
    if whole != content:
        raise AlteredError(
            f"{path}: holds bytes that are part of no file, or a file twice: it was changed after"
            f" it was signed. {_FIX}"
        )
    return entries


def _archive(entries: Iterable[tuple[str, bytes]]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            if name in archive.NameToInfo:
                raise ValueError(f"{name} is there twice")
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system, info.external_attr = 3, 0o644 << 16
            archive.writestr(info, data)
    return made.getvalue()


def _check_signature(signed: bytes, content: bytes, path: Path) -> str:
    """Return the key that signed the manifest, in hex."""
    try:
        found = Signature.model_validate_json(content)
    except ValidationError as error:
        raise AlteredError(f"{path}: {malformed(error, SIGNATURE)}") from None
    if not is_signed(signed, found.value, found.public_key):
        raise AlteredError(
            f"{path}: its manifest does not match its signature: it was changed after it was"
            f" signed. {_FIX}"
        )
    if canonical_json(found.model_dump(mode="json")) != content:
        raise AlteredError(f"{path}: its signature is written in another way. {_FIX}")
    return found.public_key


def _check_files(signed: bytes, files: list[tuple[str, bytes]], path: Path) -> None:
    """Check that the files are those that the manifest lists, in its order."""
    try:
        manifest = Manifest.model_validate_json(signed)
        if canonical_json(manifest.model_dump(mode="json")) != signed:
            raise AlteredError(f"{path}: its manifest is written in another way. {_FIX}")
    except ValidationError:
        raise AlteredError(
            f"{path}: this fedpriv can't read its manifest. Install the version that wrote"
            " it, or a newer one."
        ) from None
    if [one.name for one in manifest.files] != [name for name, _ in files]:
        raise AlteredError(f"{path}: its files are not those of its manifest. {_FIX}")
    for one, (name, data) in zip(manifest.files, files, strict=True):
        if one.digest != sha256(data):
            raise AlteredError(f"{path}: {name} was changed after the dossier was signed. {_FIX}")
