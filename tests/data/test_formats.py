"""A file is read as it is, or said to be something else, with the row and what to do."""

from __future__ import annotations

import csv
import gzip
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.data.in_memory import take_records
from fedpriv.data.read import read_records
from fedpriv.errors import DataError

SECRET = "Mrs Jones has gout"
HEADER = "pid,text"


def read(path: Path, unit: str = "pid") -> list[tuple[Any, Any]]:
    found = read_records(
        path, {"text": "text"}, unit=unit, cache_dir=path.parent / "cache", key="data.path"
    )
    return [(row.get("unit"), row["text"]) for row in found]


def refusal(path: Path, unit: str = "pid") -> str:
    with pytest.raises(DataError) as caught:
        read(path, unit)
    error = caught.value
    assert error.file == path and error.key and error.fix
    assert "Jones" not in str(error)
    return f"{error.problem}. {error.fix}"


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{HEADER}\n1,a\n{SECRET}\n", r"row 2 \(line 3\) has 1 fields, and the header 2"),
        (f"{HEADER}\n1,a\n2,{SECRET},\n", r"row 2 \(line 3\) has 3 fields, and the header 2"),
        (f"{HEADER}\n\n1,a\n\n{HEADER}\n2,b\n", r"row 2 \(line 5\) is the header again"),
        (f"{HEADER}\n1,a\n\ufeff{HEADER}\n2,b\n", r"row 2 \(line 3\) is the header again"),
        (f'{HEADER}\n1,"a\n2,{SECRET}\n', r"is not well formed up to line 3"),
        (f"{HEADER}\n1,a\n2,{SECRET}\0\n", r"row 2 \(line 3\) holds a NUL"),
        (f"pid,text,text\n1,a,{SECRET}\n", r"has a column twice"),
        (f"{HEADER}\n1,a\n,{SECRET}\n", r"row 2 \(line 3\) has no unit id"),
    ],
    ids=["short", "long", "header", "joined", "quote", "nul", "twice", "nobody"],
)
def test_a_row_that_does_not_fit_its_header_is_refused(
    content: str, said: str, tmp_path: Path
) -> None:
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t"), ("b.csv", ";")):
        path = put(tmp_path / name, content.replace(",", delimiter))
        with pytest.raises(DataError, match=said):
            read(path)
        refusal(path)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "lines",
    [
        ["pid,text", '1,"Patient says she is well', '2,HIV positive, denies pain"'],
        ["pid,text", "1,fine", '2,"Well', "3,HIV positive", '4,thus"', '5,and "so" on'],
        ["text,pid", '"Patient says she is well,1', 'HIV positive",2'],
        ["pid,text,class", "1,said,0", '2,"Well,1', '3,HIV positive",0'],
        ["pid,text,said", '2,"Well,1', '3,HIV positive",he said "no"'],
    ],
)
def test_an_export_that_quotes_nothing_merges_no_two_persons(
    lines: list[str], end: str, delimiter: str, tmp_path: Path
) -> None:
    content = end.join(lines).replace(", ", "\0").replace(",", delimiter).replace("\0", ", ")
    for name in ("a.csv", "a.tsv"):
        path = put(tmp_path / name, content)
        said = refusal(path)
        assert re.search(r"row \d \(line \d\) quotes lines that could be rows", said)
        assert (
            "Quote every value, the header's too, or save it as JSON lines." in said
            and "HIV" not in said
        )


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_ids_of_one_and_of_two_words_are_both_ids(delimiter: str, tmp_path: Path) -> None:
    lines = ["pid,text", 'Cher,"Chest pain', "Ann Smith,HIV positive", 'Bo Lee,Scar of 3"']
    path = put(tmp_path / "a.csv", "\n".join(lines).replace(",", delimiter))
    assert "quotes lines that could be rows" in refusal(path)


NOTES = [
    "Pain in leg\nno fever, no cough",
    "Pain in leg\nno fever; no cough",
    "Pain in leg\nGave 1,000 mg",
    "Pain in leg; left\nGave 1,000 mg",
    "Labs\n\nNa\t140\nK\t4.1",
    "Labs of today\nNa\t140\nwhich is fine",
    'Labs, "of" today\nNa\t140\nNa,140',
    "Well.\n",
    "a | b\nc | d",
    "\nx",
]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("names", [["pid", "text"], ["text", "pid"], ["pid", "text", "age"]])
def test_honest_notes_of_several_lines_are_read(
    names: list[str], quoting: Any, delimiter: str, tmp_path: Path
) -> None:
    with (path := tmp_path / "a.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator="\n")
        writer.writerow(names)
        for number, note in enumerate(NOTES):
            held = {"pid": f"p{number}", "age": "70", "text": note}
            writer.writerow([held[name] for name in names])
    assert read(path) == [(f"p{number}", note) for number, note in enumerate(NOTES)]


@pytest.mark.parametrize("first", ["a table, of values", "Well"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_table_in_a_text_is_read_where_the_file_is_known_to_quote(
    quoting: Any, first: str, tmp_path: Path
) -> None:
    rows = [("p1", first), ("p2", "Na,140\nK,4.1")]
    with (path := tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, quoting=quoting, lineterminator="\n").writerows([("pid", "text"), *rows])
    if quoting == csv.QUOTE_ALL or "," in first:
        assert read(path) == rows
        return
    with pytest.raises(DataError, match=r"row 2 .* quotes lines that could be rows"):
        read(path)


ROWS = [("1", "a"), ("02", 'two; "lines",\nof\tit')]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("before", ["", "\n\n", " \n", ",,\n", "sep=;\n", "\ufeff"])
def test_the_header_tells_what_separates_values(
    delimiter: str, name: str, end: str, before: str, tmp_path: Path
) -> None:
    if before.startswith("sep"):
        before = before.replace(";", delimiter)
    doubled = [(i, t.replace('"', '""')) for i, t in ROWS]
    quoted = [f'{i}{delimiter}"{t}"\n' for i, t in doubled]
    content = before + f"pid{delimiter}text\n" + "".join(quoted)
    encoded = content.replace("\n", end).encode()
    path = put(
        tmp_path / name, gzip.compress(encoded, mtime=0) if name.endswith(".gz") else encoded
    )
    assert read(path) == [(i, t.replace("\n", end)) for i, t in ROWS]


def test_columns_that_nobody_asked_for_may_be_called_anything(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", ",pid,,x,x,text\n0,1,2,3,4,a\n")
    assert read(path) == [("1", "a")]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("Report of June\n\npid,text\n1,a\n", "no such column.* Its columns are Report of June"),
        ("# made by X\npid,text\n1,a\n", "no such column.* first line"),
        ("<html><body>not found</body></html>", "no such column.* first line"),
        ('{"pid": 1, "text": "a"}\n', "no such column.* first line"),
        ("PID,TEXT\n1,a\n", "no such column.* Did you mean 'TEXT'.* PID, TEXT"),
        (" pid , text \n1,a\n", "no such column.* Did you mean ' text '.* pid ,  text "),
    ],
)
def test_a_header_of_other_names_is_told_and_no_row_blamed(
    content: str, said: str, tmp_path: Path
) -> None:
    path = put(tmp_path / "a.csv", content)
    with pytest.raises(DataError, match=said):
        read(path)


def test_a_file_without_a_header_is_not_quoted(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", f"12,2020-01-01,{SECRET}\n13,2020-01-02,x\n")
    assert "should name its columns" in refusal(path)
    path = put(tmp_path / "b.csv", f"{SECRET * 9},Mr\nx,y\n")
    assert "should name its columns" in refusal(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", f"{HEADER}\n1,a\n2,{SECRET} für\n".encode("latin-1"), "line 3 is not UTF-8"),
        (
            "a.csv.gz",
            gzip.compress(f"{HEADER}\n1,für\n".encode("cp1252"), mtime=0),
            "line 2 is not UTF",
        ),
        ("a.jsonl", '{"pid": 1, "text": "für"}'.encode("cp1252"), "line 1 is not UTF-8"),
        ("a.json", '[{"pid": 1,\n "text": "für"}]'.encode("cp1252"), "line 2 is not UTF-8"),
        ("a.tsv", f"pid\ttext\n1\t{SECRET}\n".encode("utf-16"), "is text in UTF-16"),
        ("a.jsonl", '{"pid": 1, "text": "a"}'.encode("utf-16"), "is text in UTF-16"),
        ("a.csv", f"{HEADER}\n1,{SECRET}\n".encode("utf-16-le"), "begins with a NUL.*UTF-16"),
        ("a.csv", gzip.compress(HEADER.encode(), mtime=0), "is packed by gzip.* in .gz"),
        ("a.csv", b"PK\x03\x04\x14\0\xff", "is a ZIP file or a workbook"),
        ("a.csv.gz", HEADER.encode(), "is no gzip file, though its name ends in .gz"),
        ("a.csv.gz", gzip.compress(SECRET.encode() * 99, mtime=0)[:-9], "is cut off or damaged"),
        ("a.csv", b"PAR1\xff\xff", "is a Parquet file.*.parquet"),
        ("a.csv", b"SQLite format 3\0\xff", "is an SQLite database.* omop"),
        ("a.parquet", b"PAR1" + SECRET.encode(), "is cut off or damaged"),
        ("a.parquet", f"{HEADER}\n".encode(), "is not what its name says, or is cut off"),
        ("a.arrow", f"{HEADER}\n{SECRET}".encode(), "is not what its name says, or is cut off"),
    ],
)
def test_a_file_that_is_something_else_is_called_what_it_is(
    name: str, content: bytes, said: str, tmp_path: Path
) -> None:
    path = put(tmp_path / name, content)
    with pytest.raises(DataError, match=said):
        read(path)
    refusal(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"pid": 1, "text": "a"}\n{"pid": 2, "text": "b", "text": "c"}', "line 2 has a key twice"),
        ('[{"pid": 1, "pid": 2, "text": "a"}]', "an object has a key twice"),
        (f'[{{"pid": 1, "text": "a"}},\n{{"pid": 2, "text": "{SECRET}', "no whole JSON.*line 2"),
        ('[{"pid": 1, "text": "a"}]\n[]', "no whole JSON array.*line 2"),
        ('{\n "rows": [{"pid": 1, "text": "a"}]\n}', "line 1 is not JSON.*one array of objects"),
        ('{"rows": [{"pid": 1, "text": "a"}]}', "no such column.* rows"),
        ("[" * 100_000, "nested too deeply"),
        ('{"pid": 1, "text": "a"}\n{"pid": ' + "1" * 5000 + "}", "line 2 has a number of too many"),
        ('{"pid": NaN, "text": "a"}', "line 1 has no unit id"),
        ('{"pid": 1, "text": ["a"]}', "line 1 holds a value of type list"),
        ('{"pid": true, "text": "a"}', "line 1 has a unit id that is a truth value"),
        ('{"pid": 1e16, "text": "a"}', "line 1 has a unit id that is a rounded number"),
        ('{"pid": "\\ud8007", "text": "a"}', "line 1 has a unit id with a character that was lost"),
        ("1\n2", "line 1 is not a JSON object"),
    ],
)  # fmt: skip
def test_json_that_is_none_is_refused_by_its_line(content: str, said: str, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json"):
        path = put(tmp_path / name, content)
        with pytest.raises(DataError, match=said):
            read(path)
        refusal(path)


def test_json_says_nothing_by_nan(tmp_path: Path) -> None:
    path = put(
        tmp_path / "a.jsonl", '\ufeff{"pid": 1.0, "text": NaN}\r{"pid": "1", "text": "\\ud800"}'
    )
    assert read(path) == [("1", None), ("1", "?")]


def table(tmp_path: Path, kind: str, columns: dict[str, Any]) -> Path:
    made = pa.table(columns)
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(made, path)
    elif kind == "arrow":
        with pa.ipc.new_stream(path, made.schema) as writer:
            writer.write_table(made)
    else:
        datasets.Dataset(made).save_to_disk(path)
    return path


@pytest.mark.parametrize("kind", ["parquet", "arrow", "saved"])
def test_columns_of_any_type_are_texts_or_refused(kind: str, tmp_path: Path) -> None:
    def reads(values: Any, pid: Any = ("1", "2")) -> Any:
        return read(table(tmp_path, kind, {"pid": list(pid), "text": values}))

    words = pa.array(["a", "b"])
    assert [t for _, t in reads(words.dictionary_encode())] == ["a", "b"]
    assert [t for _, t in reads(words.cast(pa.large_string()))] == ["a", "b"]
    assert [t for _, t in reads(pa.array([1.0, None]))] == ["1", None]
    assert [t for _, t in reads(pa.array([0.1, 7], pa.float32()))] == ["0.1", "7"]
    assert [t for _, t in reads(pa.array([18262, None], pa.date32()))] == ["2020-01-01", None]
    for odd in ([b"a", b"b"], [["a"], ["b"]], [{"a": 1}, {"a": 2}]):
        path = table(tmp_path, kind, {"pid": ["1", "2"], "text": odd})
        with pytest.raises(DataError, match=r"row 1 holds a value of type .* where text is"):
            read(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "saved"])
def test_ids_of_any_type_are_one_persons_or_refused(kind: str, tmp_path: Path) -> None:
    def ids(values: Any) -> list[Any]:
        return [i for i, _ in read(table(tmp_path, kind, {"pid": values, "text": ["a", "b"]}))]

    wholes = (pa.int64(), pa.uint8(), pa.float64(), pa.float32(), pa.decimal128(21, 2))
    for whole in wholes:
        assert ids(pa.array([1, 7]).cast(whole)) == ["1", "7"]
    assert ids(pa.array(["1.0", " 7"]).dictionary_encode()) == ["1", "7"]
    odd_ones = [pa.array([1, None], pa.float64()), pa.array([1.0, float("nan")])]
    odd_ones += [pa.array([1, 2**53], pa.float64()), pa.array([1, 2**24], pa.float32())]
    for odd in odd_ones:
        path = table(tmp_path, kind, {"pid": odd, "text": ["a", "b"]})
        with pytest.raises(DataError, match=r"row 2 has (no unit id|a unit id that is a rounded)"):
            read(path)
    stamps = pa.array([0, 1], pa.timestamp("s"))
    with pytest.raises(DataError, match="row 1 has a unit id that is a truth value or a date"):
        ids(stamps)


def test_text_of_arrow_that_is_no_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    held = pa.array([b"fine", "für".encode("latin-1"), None]).cast(pa.binary())
    broken = pa.StringArray.from_buffers(3, held.buffers()[1], held.buffers()[2], held.buffers()[0])
    path = table(tmp_path, "arrow", {"pid": ["1", "2", "3"], "text": broken})
    with pytest.raises(DataError, match="row 2 holds a value of type bytes"):
        read(path)


def test_rows_in_memory_are_read_as_files_are(tmp_path: Path) -> None:
    def take(*rows: Any) -> Any:
        return take_records(
            rows,  # type: ignore[arg-type]
            {"text": "text"},
            unit="pid",
            cache_dir=tmp_path,
            key="records",
        )

    ids = (1, 1.0, "1", " 1 ", np.int64(1), np.float32(1), np.str_("1.0"))
    found = take(*({"pid": i, "text": "a"} for i in ids))
    assert set(found["unit"]) == {"1"}
    fine = {"pid": 1, "text": "a"}
    for odd, said in (
        ({"pid": 1, "text": SECRET.encode()}, "row 2 holds a value of type bytes"),
        ({"pid": b"1", "text": SECRET}, "row 2 holds a value of type bytes"),
        ({"pid": float("nan"), "text": SECRET}, "row 2 has no unit id"),
        (SECRET, "row 2 is a str"),
        (None, "row 2 is a NoneType"),
    ):
        with pytest.raises(DataError, match=said) as caught:
            take(fine, odd)
        assert SECRET not in str(caught.value)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fields=st.lists(
        st.lists(
            st.sampled_from(["7", "a", "pid", "text", '"', "", "\r", "\n", ";", "\0"]), max_size=4
        ),
        max_size=4,
    ),
    delimiter=st.sampled_from(",;\t|"),
)
def test_whatever_rows_hold_nobody_is_made_of_them(
    fields: list[list[str]], delimiter: str, tmp_path: Path
) -> None:
    """A file of any rows is refused, or each row that is read has both of its values."""
    lines = [delimiter.join(row) for row in fields]
    path = put(tmp_path / "a.csv", "\n".join([f"pid{delimiter}text", *lines]))
    try:
        found = read(path)
    except DataError:
        return
    assert all(unit and text is not None for unit, text in found)
    assert len(found) <= len([line for line in "\n".join(lines).splitlines() if line])
