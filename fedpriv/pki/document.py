"""JSON files that one fedpriv writes and another reads. They are refused if a part is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from fedpriv.errors import EnrolmentError
from fedpriv.files import write_atomic
from fedpriv.section import Section

FORMAT = 1
Document = TypeVar("Document", bound=Section)


def read_document(path: Path, kind: type[Document], *, fix: str) -> Document:
    """Read the document in `path`.

    Args:
        fix: what to do if it is missing or damaged, in a sentence.

    Raises:
        EnrolmentError: it can't be read, is damaged, or was written by a newer fedpriv.
    """
    content = read_bytes(path, fix)
    try:
        version = json.loads(content)["format"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if isinstance(version, int) and version > FORMAT:
        raise EnrolmentError(
            f"{path}: has format {version}, and this fedpriv reads {FORMAT}. Install the fedpriv"
            " version that the coordinator uses."
        )
    try:
        return kind.model_validate_json(content, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        what = f"{where}: {problem['msg']}" if where else problem["msg"]
        raise EnrolmentError(f"{path}: was edited or is damaged ({what}). {fix}") from None


def read_bytes(path: Path, fix: str) -> bytes:
    """Read a file of an enrolment or a federation. For `fix` and the error see `read_document`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnrolmentError(f"{path}: can't be read: {error.strerror}. {fix}") from None


def write_document(path: Path, document: Section) -> None:
    """Replace `path` by `document`, atomically."""
    write_atomic(path, document.model_dump_json(indent=2) + "\n")
