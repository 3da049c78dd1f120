"""JSON files that one fedpriv writes and another reads. They are refused if a part is wrong."""

from __future__ import annotations

from pathlib import Path

from fedpriv.documents import Document, read_json
from fedpriv.errors import ConfigError, EnrolmentError
from fedpriv.files import write_atomic
from fedpriv.section import Section


def read_document(path: Path, kind: type[Document], *, fix: str) -> Document:
    """Read the document in `path`.

    Args:
        fix: what to do if it is missing or damaged, in a sentence.

    Raises:
        EnrolmentError: it can't be read, is damaged, or is of another version of fedpriv.
    """
    try:
        return read_json(path, kind)
    except ConfigError as error:
        raise EnrolmentError(f"{error} {fix}") from None


def read_bytes(path: Path, fix: str) -> bytes:
    """Read a file of an enrolment or a federation. For `fix` and the error see `read_document`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnrolmentError(f"{path}: can't be read: {error.strerror}. {fix}") from None


def write_document(path: Path, document: Section) -> None:
    """Replace `path` by `document`, atomically."""
    write_atomic(path, document.model_dump_json(indent=2) + "\n")
