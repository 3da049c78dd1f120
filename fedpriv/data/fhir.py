"""Read a FHIR R4 export's documents one by one, with the column names of OMOP's table NOTE.

So sites with FHIR, with OMOP, or with a file of such columns can take part in one job.
Source: https://hl7.org/fhir/R4/documentreference.html
"""

from __future__ import annotations

import re
from base64 import b64decode
from codecs import lookup
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedpriv.config.ehr import FhirSection
from fedpriv.data.dates import day_of
from fedpriv.data.formats import Row, json_rows, of_source
from fedpriv.data.html import text_of
from fedpriv.errors import DataError

Table = Mapping[str, Any]
PLAIN, PAGE = "text/plain", "text/html"
NAMES = (".ndjson", ".ndjson.gz")
WRONG = "entered-in-error"
STATUS = ("current", "superseded", WRONG)
_PATIENT = re.compile(r"(?:.*/)?Patient/([A-Za-z0-9.-]{1,64})(?:/_history/[A-Za-z0-9.-]{1,64})?")


def document_rows(section: FhirSection, wanted: Sequence[str]) -> Iterator[Row]:
    """Yield the documents that pass the section's filters, in file order.

    A row has ``note_id``, ``person_id`` (the id of the patient; None if the subject is no patient,
    which is refused if the column is wanted), ``note_date``, ``note_title``, ``note_text`` (None if
    no attachment is text) and ``language``. Documents entered in error are never read. A document
    with several attachments is the same text in several formats. One is read: the first in plain
    text, or else the first page of HTML, without its tags.

    Raises:
        DataError: a file is missing or not NDJSON; a resource is no DocumentReference, or of no
            patient; its status or date is not known; a text is not in base64 or its character
            set, or is not beside the file. The error names file and record, and quotes neither.

    Privacy:
        Reads private records, one by one, and nothing over the network.
    """
    for path in _files(section.path):
        with of_source(path):
            for number, found in enumerate(json_rows(path, wanted), 1):
                document = _Document(found.values, number, path.parent)
                row = document.row(section, needs_patient="person_id" in wanted)
                if row is not None:
                    yield Row(row, f"record {number}", path)


def _files(path: Path) -> list[Path]:
    found = [path] if path.is_file() else []
    if path.is_dir():
        found = sorted(one for one in path.iterdir() if one.name.lower().endswith(NAMES))
        if missed := sorted(one for one in path.rglob("*.ndjson*") if one not in found):
            fix = "Put all files into one folder, as .ndjson or .ndjson.gz."
            problem = f"holds files that would not be read, such as {missed[0].relative_to(path)}"
            raise DataError(problem, key=".path", fix=fix)
    if found and all(one.name.lower().endswith(NAMES) for one in found):
        return found
    problem = "no file of FHIR resources, one a line" if path.exists() else "no such file"
    fix = f"Expected a file whose name ends in {' or '.join(NAMES)}, or a folder of such files."
    raise DataError(problem, key=".path", fix=fix)


class _Document:
    """One resource of a file, with its folder. Errors name it by its number."""

    def __init__(self, resource: Table, number: int, folder: Path) -> None:
        self.resource, self.number, self.folder = resource, number, folder
        kind = resource.get("resourceType")
        if kind == "Bundle":
            fix = "Write the resources of its entries, one a line."
            raise self._error("is a Bundle", "resourceType", fix)
        if kind != "DocumentReference":
            fix = "Keep other resources in files of their own, as a bulk export does."
            raise self._error("is no DocumentReference", "resourceType", fix)

    def row(self, section: FhirSection, *, needs_patient: bool = True) -> Table | None:
        """Return the row of this document; None if it is left out."""
        resource = self.resource
        status = resource.get("status")
        if status not in STATUS:
            fix = f"It is one of {', '.join(STATUS)}."
            raise self._error("has no status that FHIR knows", "status", fix)
        if WRONG in (status, resource.get("docStatus")) or status not in section.status:
            return None
        if section.type_code and not _codes(resource.get("type")) & set(section.type_code):
            return None
        day = str(resource.get("date") or "")[:10]
        if not self._within(section):
            return None
        attachment, kind = self._attachment()
        language = attachment.get("language") or resource.get("language")
        if section.language and not _speaks(language, section.language):
            return None
        person = _patient(resource.get("subject"))
        if person is None and needs_patient:
            raise self._error(
                "belongs to no patient",
                "subject.reference",
                "Leave documents of groups and devices out of the file, or take each record as a"
                " unit.",
            )
        return {
            "note_id": resource.get("id"),
            "person_id": person,
            "note_date": day or None,
            "note_title": attachment.get("title"),
            "note_text": self._text(attachment, kind),
            "language": language,
        }

    def _within(self, section: FhirSection) -> bool:
        """Tell whether the date is within the section's days, if any. A missing date is not."""
        first, last = section.first_date, section.last_date
        if first is None and last is None:
            return True
        value = self.resource.get("date")
        with self._refusing(
            "has a date whose day is missing or unclear", "date", "Expected YYYY-MM-DDThh:mm:ssZ."
        ):
            if value is not None and not isinstance(value, str):
                raise ValueError("no instant")
            day = day_of(value)
        return day is not None and (first or day) <= day <= (last or day)

    def _attachment(self) -> tuple[Table, Message]:
        """Return the attachment that is read, and its kind of content; empty if none is text."""
        held = [_table(_table(one).get("attachment")) for one in _list(self.resource, "content")]
        kinds = [_kind(attachment) for attachment in held]
        for wanted in (PLAIN, PAGE):
            for attachment, kind in zip(held, kinds, strict=True):
                held_here = (attachment.get("data"), attachment.get("url"))
                if kind.get_content_type() == wanted and held_here != (None, None):
                    return attachment, kind
        return {}, Message()

    def _text(self, attachment: Table, kind: Message) -> str | None:
        if not attachment:
            return None
        content = self._content(attachment)
        element, charset = "content.attachment.contentType", str(kind.get_content_charset("utf-8"))
        fix = "Name one that Python knows, such as utf-8."
        with self._refusing("has a text in a character set that is not known", element, fix):
            lookup(charset)
        right = "Name the right one there, such as text/plain; charset=iso-8859-1"
        fix = f"{right}, or export it as UTF-8."
        with self._refusing("has a text that is not in its character set", element, fix):
            text = content.decode(charset).removeprefix("\ufeff")
        return text_of(text) if kind.get_content_type() == PAGE else text

    def _content(self, attachment: Table) -> bytes:
        if attachment.get("data") is not None:
            with self._refusing(
                "has a text that is not base64", "content.attachment.data", "Export it again."
            ):
                return b64decode("".join(attachment["data"].split()), validate=True)
        file = _beside(self.folder.resolve(), str(attachment["url"]))
        if file is None:
            raise self._error(
                "has its text at an address, from which a site fetches nothing, or in a"
                " resource file",
                "content.attachment.url",
                "Export the text with it, or into a file of its own beside it, named by a relative"
                " path.",
            )
        with self._refusing(
            "has its text in a file that is not there, or can't be read",
            "content.attachment.url",
            "Put the file where the relative path leads.",
        ):
            return file.read_bytes()

    @contextmanager
    def _refusing(self, problem: str, element: str, fix: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, LookupError, AttributeError, OSError):
            raise self._error(problem, element, fix) from None

    def _error(self, problem: str, element: str, fix: str) -> DataError:
        return DataError(f"record {self.number} {problem} ({element})", fix=fix)


def _beside(folder: Path, address: str) -> Path | None:
    """Return the file in a folder that a relative address leads to; None if it leads out.

    Links are followed. The author of the records must not choose which other files of this machine
    are read. A file of resources is refused: one person's text would then hold what others' records
    say.
    """
    try:
        url = urlsplit(address)
        file = (folder / unquote(url.path)).resolve()
    except ValueError:
        return None
    is_local, is_export = not (url.scheme or url.netloc), file.name.lower().endswith(NAMES)
    return file if is_local and file.is_relative_to(folder) and not is_export else None


def _table(value: Any) -> Table:
    return value if isinstance(value, dict) else {}


def _list(table: Table, name: str) -> list[Any]:
    found = table.get(name)
    return found if isinstance(found, list) else []


def _kind(attachment: Table) -> Message:
    kind = Message()
    kind["Content-Type"] = " ".join(str(attachment.get("contentType") or "x/x").split())
    return kind


def _patient(subject: Any) -> str | None:
    """Return the id of a patient, whichever way the reference is written.

    An address before it and a version behind it are left out. Otherwise one person, named in two
    ways, would count as two, each protected separately.
    """
    found = _PATIENT.fullmatch(str(_table(subject).get("reference") or ""))
    return None if found is None else found[1]


def _codes(concept: Any) -> set[str]:
    return {str(_table(coding).get("code")) for coding in _list(_table(concept), "coding")}


def _speaks(language: Any, wanted: Sequence[str]) -> bool:
    said = str(language or "").lower()
    return any(said == one.lower() or said.startswith(f"{one.lower()}-") for one in wanted)
