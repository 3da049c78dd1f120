"""Documents of FHIR come one by one, each by itself; what is wrong is said without their text."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from base64 import b64encode
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedpriv.config.ehr import FhirSection
from fedpriv.data import fhir
from fedpriv.data.read import read_records
from fedpriv.errors import DataError

COLUMNS = {"text": "note_text"}
SECRET = "the patient is a famous singer"
Json = dict[str, Any]


def attachment(text: str | bytes, kind: str = "text/plain", **others: Any) -> Json:
    content = text.encode() if isinstance(text, str) else text
    return {"contentType": kind, "data": b64encode(content).decode(), **others}


def document(
    number: int, patient: str | None = "Patient/p1", *attachments: Json, **others: Any
) -> Json:
    """A DocumentReference, by default with one attachment in plain text."""
    held = attachments or (attachment(f"text {number}"),)
    made = {
        "resourceType": "DocumentReference",
        "id": f"d{number}",
        "status": "current",
        "date": "2020-06-15T08:00:00+02:00",
        "content": [{"attachment": one} for one in held],
        **others,
    }
    return made if patient is None else {"subject": {"reference": patient}, **made}


def write(path: Path, *documents: Mapping[str, Any]) -> FhirSection:
    content = "\n".join(json.dumps(one) for one in documents).encode()
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return FhirSection(path=path)


def read(section: FhirSection, tmp_path: Path, unit: str = "person_id", **columns: str) -> Any:
    return read_records(
        section, columns or COLUMNS, unit=unit, cache_dir=tmp_path / "cache", key="data.path"
    )


@pytest.mark.parametrize("name", ["a.ndjson", "a.ndjson.gz", "B.NDJSON"])
def test_documents_and_whose_they_are(name: str, tmp_path: Path) -> None:
    page = attachment("<p>second<p>caf&eacute;", "text/html; charset=utf-8")
    section = write(
        tmp_path / name, document(1), document(2, "Patient/p2", page), document(3, "Patient/p1")
    )
    records = read(section, tmp_path)
    assert records["text"][:] == ["text 1", "second\ncafé", "text 3"]
    assert records["unit"][:] == ["p1", "p2", "p1"]  # the patient, never the number of the row


def test_a_folder_is_all_of_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    write(folder / "DocumentReference.2.ndjson.gz", document(3))
    write(folder / "DocumentReference.1.ndjson", document(1), document(2))
    (folder / "manifest.json").write_text("{}")
    assert read(FhirSection(path=folder), tmp_path)["text"][:] == ["text 1", "text 2", "text 3"]


@pytest.mark.parametrize("name", ["2024/DocumentReference.ndjson", "more.ndjson.bz2"])
def test_a_file_of_a_folder_that_would_not_be_read_is_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    write(folder / "DocumentReference.1.ndjson", document(1))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"")
    with pytest.raises(DataError, match=f"would not be read, such as {name}"):
        read(FhirSection(path=folder), tmp_path)


@pytest.mark.parametrize(
    "reference",
    ["Patient/a-1", "https://ehr.example.org/fhir/Patient/a-1", "Patient/a-1/_history/2"],
)
def test_a_patient_is_one_however_the_reference_is_written(reference: str, tmp_path: Path) -> None:
    section = write(tmp_path / "a.ndjson", document(1, "Patient/a-1"), document(2, reference))
    assert read(section, tmp_path)["unit"][:] == ["a-1", "a-1"]


@pytest.mark.parametrize(
    "reference", [None, "", "#p1", "Group/7", "Patient/", "urn:uuid:1", "Practitioner/Patient"]
)
def test_a_document_without_a_patient_is_refused_and_not_quoted(
    reference: str | None, tmp_path: Path
) -> None:
    lost = document(2, reference, attachment(SECRET))
    section = write(tmp_path / "a.ndjson", document(1), lost)
    said = r"a.ndjson: data.fhir: record 2 belongs to no patient \(subject.reference\)"
    with pytest.raises(DataError, match=said) as caught:
        read(section, tmp_path)
    assert SECRET not in str(caught.value)
    assert len(read(section, tmp_path, "record")) == 2


def test_of_several_formats_of_a_text_the_plainest_is_read(tmp_path: Path) -> None:
    pdf = attachment(b"%PDF", "application/pdf")
    page, plain = attachment("<b>page</b>", "text/html"), attachment("plain")
    empty = {"contentType": "text/plain", "title": "neither data nor url"}
    section = write(
        tmp_path / "a.ndjson",
        document(1, "Patient/p", pdf, page, plain),
        document(2, "Patient/p", pdf, page, empty),
        document(3, "Patient/p", pdf),
        document(4, "Patient/p", {"contentType": "application/pdf", "url": "https://x.org/1"}),
        document(5, content="none"),
    )
    assert read(section, tmp_path)["text"][:] == ["plain", "page", None, None, None]


def test_characters_are_those_that_the_content_type_says(tmp_path: Path) -> None:
    old = attachment("Übelkeit".encode("latin-1"), "text/plain; charset=ISO-8859-1")
    section = write(tmp_path / "a.ndjson", document(1, "Patient/p", old))
    assert read(section, tmp_path)["text"][:] == ["Übelkeit"]
    marked = document(1, "Patient/p", attachment("\ufeffÜbelkeit"))
    assert read(write(tmp_path / "c.ndjson", marked), tmp_path)["text"][:] == ["Übelkeit"]
    broken = document(2, "Patient/p", attachment(b"caf\xe9"))
    with pytest.raises(DataError, match="record 1 has a text that is not in its character set"):
        read(write(tmp_path / "b.ndjson", broken), tmp_path)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 2, 3]),
        ({"status": ["current", "superseded"]}, [1, 2, 3, 4]),
        ({"type_code": ["11506-3"]}, [2]),
        ({"language": ["en"]}, [1, 2]),
        ({"language": ["EN-gb"]}, [2]),
        ({"first_date": "2020-06-15"}, [1, 2]),
        ({"last_date": "2019-12-31"}, [3]),
        ({"first_date": "2019-01-01", "last_date": "2020-06-15"}, [1, 2, 3]),
    ],
)
def test_a_filter_keeps_or_leaves_out_each_document_by_itself(
    settings: Json, expected: list[int], tmp_path: Path
) -> None:
    typed = {"coding": [{"code": "x"}, {"system": "http://loinc.org", "code": "11506-3"}]}
    path = write(
        tmp_path / "a.ndjson",
        document(1, language="en"),
        document(2, "Patient/p", attachment("text 2", language="en-GB"), language="de", type=typed),
        document(3, date="2019-12-31T23:59:59Z"),
        document(4, status="superseded", language="fr", date=None),
        document(5, status="entered-in-error", type=typed, language="en"),
    ).path
    section = FhirSection.model_validate({"path": path, **settings})
    assert read(section, tmp_path)["text"][:] == [f"text {number}" for number in expected]


def test_what_was_entered_in_error_is_never_read(tmp_path: Path) -> None:
    wrong = "entered-in-error"
    section = write(
        tmp_path / "a.ndjson",
        document(1, status=wrong),
        document(2, docStatus=wrong),
        document(3, docStatus="final"),
        document(4, None, status=wrong),
    )
    assert read(section, tmp_path)["text"][:] == ["text 3"]
    with pytest.raises(ValidationError, match="'current' or 'superseded'"):
        FhirSection.model_validate({"path": section.path, "status": [wrong]})


@pytest.mark.parametrize("status", [None, "active", ["current"], 1])
def test_a_status_that_nobody_knows_is_refused(status: Any, tmp_path: Path) -> None:
    section = write(tmp_path / "a.ndjson", document(1), document(2, status=status))
    with pytest.raises(DataError, match=r"record 2 has no status that FHIR knows \(status\)"):
        read(section, tmp_path)


@pytest.mark.parametrize("day", ["2020", "06/15/2020", 1592179200, "soon"])
def test_a_date_without_a_day_is_refused_where_dates_are_filtered(day: Any, tmp_path: Path) -> None:
    section = write(tmp_path / "a.ndjson", document(1), document(2, date=day))
    assert len(read(section, tmp_path)) == 2
    dated = section.model_copy(update={"first_date": date(2020, 1, 1)})
    with pytest.raises(
        DataError, match=r"a.ndjson: .*record 2 has a date whose day is missing or unclear \(date\)"
    ):
        read(dated, tmp_path)


def test_nothing_is_no_text(tmp_path: Path) -> None:
    """A null is not the word None, nor bytes that this word would be in base64."""
    (tmp_path / "a.txt").write_text("from the file")
    empty = {"contentType": "text/plain", "data": None, "url": None}
    linked = {"contentType": "text/plain", "data": None, "url": "a.txt"}
    section = write(
        tmp_path / "a.ndjson",
        document(1, "Patient/p", empty),
        document(2, "Patient/p", linked),
        document(3, "Patient/p", empty, attachment("second")),
        document(4, content=[{"attachment": None}, None]),
        document(5, content=None, date=None),
    )
    assert read(section, tmp_path)["text"][:] == [None, "from the file", "second", None, None]


def test_a_message_names_the_file_and_the_record_in_it(tmp_path: Path) -> None:
    """Also where a filter has left out what is before it, in this file or another."""
    folder = tmp_path / "export"
    write(folder / "a.ndjson", document(1), document(2, status="superseded"))
    write(folder / "b.ndjson", document(3, None, status="superseded"), document(4, "Group/1"))
    with pytest.raises(DataError, match=r"b.ndjson: data.fhir: record 2 belongs to no patient"):
        read(FhirSection(path=folder), tmp_path)
    write(folder / "b.ndjson", document(3), document(4, "Patient/-"))
    with pytest.raises(DataError, match=r"b.ndjson: privacy.unit: record 2 has no unit id"):
        read(FhirSection(path=folder), tmp_path)


def test_a_bundle_is_told_from_its_entries(tmp_path: Path) -> None:
    bundle = {"resourceType": "Bundle", "entry": [{"resource": document(1)}]}
    with pytest.raises(DataError, match=r"record 1 is a Bundle .* one a line"):
        read(write(tmp_path / "a.ndjson", bundle), tmp_path)


def test_a_text_may_be_in_a_file_beside_it(tmp_path: Path) -> None:
    export = tmp_path / "export"
    linked = {"contentType": "text/plain", "url": "notes/1%20a.txt"}
    section = write(export / "a.ndjson", document(1, "Patient/p", linked))
    with pytest.raises(DataError, match=r"record 1 has its text in a file that is not there"):
        read(section, tmp_path)
    (export / "notes").mkdir()
    (export / "notes" / "1 a.txt").write_text("from the file")
    assert read(section, tmp_path)["text"][:] == ["from the file"]
    (export / "notes" / "1 a.txt").write_text("changed since")
    assert read(section, tmp_path)["text"][:] == ["changed since"]  # though the .ndjson did not


def test_no_document_is_made_of_the_others(tmp_path: Path) -> None:
    """The file of all documents as the text of one, which would change with the others."""
    linked = {"contentType": "text/plain", "url": "b.ndjson"}
    section = write(tmp_path / "export/a.ndjson", document(1), document(2, "Patient/p", linked))
    write(tmp_path / "export/b.ndjson", document(3, "Patient/q"))
    with pytest.raises(DataError, match=r"record 2 .* in a resource file"):
        read(section, tmp_path)


@pytest.mark.parametrize(
    "url",
    ["https://ehr.example.org/Binary/1", "file:///etc/hostname", "/etc/hostname", "../b.txt",
     "//host/b.txt", "link.txt", "http://[", "%00"],
)  # fmt: skip
def test_a_text_elsewhere_is_refused_by_name(url: str, tmp_path: Path) -> None:
    """And no address, as it may hold an id."""
    export = tmp_path / "export"
    lost = document(2, "Patient/p", {"contentType": "text/html", "url": url})
    section = write(export / "a.ndjson", document(1), lost)
    (tmp_path / "b.txt").write_text(SECRET)
    (export / "link.txt").symlink_to(tmp_path / "b.txt")
    said = r"data.fhir: record 2 has its text at an address.*\(content.attachment.url\)"
    with pytest.raises(DataError, match=said) as caught:
        read(section, tmp_path)
    assert url not in str(caught.value)


@pytest.mark.parametrize(
    ("resource", "said"),
    [
        ({"resourceType": "Patient", "id": SECRET}, r"record 2 is no DocumentReference"),
        (document(2, "Patient/p", {"contentType": "text/plain", "data": SECRET}),
         r"record 2 has a text that is not base64"),
        (document(2, "Patient/p", {"contentType": "text/plain", "data": True}),
         r"record 2 has a text that is not base64"),
        (document(2, "Patient/p", attachment(SECRET, "text/plain; charset=klingon")),
         r"record 2 has a text in a character set that is not known"),
        ([SECRET], "line 2 is not a JSON object"),
    ],
)  # fmt: skip
def test_errors_name_the_record_and_quote_nothing(resource: Any, said: str, tmp_path: Path) -> None:
    section = write(tmp_path / "a.ndjson", document(1), resource)
    with pytest.raises(DataError, match=said) as caught:
        read(section, tmp_path)
    assert SECRET not in str(caught.value)
    assert caught.value.file == section.path


def test_errors_name_what_to_do(tmp_path: Path) -> None:
    section = write(tmp_path / "a.ndjson", document(1))
    with pytest.raises(DataError, match=r"columns.text: no such column .*'text'.*note_text"):
        read(section, tmp_path, text="text")
    for path in ("none.ndjson", "cache"):
        with pytest.raises(DataError, match=r"data.fhir.path: no .*file.*\.ndjson"):
            read(FhirSection(path=tmp_path / path), tmp_path)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(DataError, match=r"a.json: data.fhir.path: no file of FHIR"):
        read(FhirSection(path=tmp_path / "a.json"), tmp_path)
    (tmp_path / "b.ndjson").write_text(f'{{"a": 1}}\n{SECRET}')
    with pytest.raises(DataError) as caught:
        read(FhirSection(path=tmp_path / "b.ndjson"), tmp_path)
    assert SECRET not in str(caught.value)
    none_left = FhirSection(path=section.path, status=("superseded",))
    with pytest.raises(DataError, match="has no records"):
        read(none_left, tmp_path)


def test_documents_are_streamed(tmp_path: Path) -> None:
    size, count = 40_000, 500
    section = write(
        tmp_path / "a.ndjson",
        *(document(i, "Patient/p", attachment("x" * size)) for i in range(count)),
    )
    tracemalloc.start()
    for _ in fhir.document_rows(section, ("note_text",)):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < size * count / 5


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["attachment", "reference", "coding", "data", "url", "contentType"]),
        inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    parts=st.dictionaries(
        st.sampled_from(["subject", "type", "date", "content", "language", "status", "id"]),
        _anything,
    )
)
def test_whatever_a_resource_holds_the_error_is_ours(parts: Json, tmp_path: Path) -> None:
    section = write(tmp_path / "a.ndjson", {**document(1), **parts})
    filters = FhirSection(
        path=section.path, status=("current",), language=("en",), type_code=("a",)
    )
    for one in (section, filters):
        try:
            found = list(fhir.document_rows(one, ("note_text",)))
        except DataError:
            continue
        assert all(isinstance(row.values["note_text"], str | None) for row in found)
