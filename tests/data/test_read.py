"""Every format gives the same records; every bad source an error a person can act on."""

from __future__ import annotations

import csv
import gzip
import io
import json
import socket
import stat
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow.feather
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.data.in_memory import columns_of, rows_of, take_records
from fedpriv.data.read import UNIT, read_records
from fedpriv.errors import DataError

ROWS = [
    {"note": "2020-01-01", "patient": "007", "class": "0", "ssn": "078-05-1120"},
    {"note": 'a "quoted", note\nof two lines', "patient": "N7", "class": "1", "ssn": "x"},
    {"note": "café", "patient": "12.5", "class": "0", "ssn": "x"},
]
COLUMNS = {"text": "note", "label": "class"}
EXPECTED = {
    "text": [row["note"] for row in ROWS],
    "label": ["0", "1", "0"],
    "unit": ["007", "N7", "12.5"],
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in the format that the name tells."""
    kind = path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif kind == "arrow":
        datasets.Dataset.from_list(rows).save_to_disk(path.with_suffix(""))
        next(path.with_suffix("").glob("*.arrow")).rename(path)
    elif kind == "saved":
        datasets.Dataset.from_list(rows).save_to_disk(path)
    elif kind == "feather":
        table = datasets.Dataset.from_list(rows).with_format("arrow")[:]
        path = path.with_suffix(".file.arrow")
        pyarrow.feather.write_feather(table, path, compression="uncompressed")
    else:
        stream = io.StringIO(newline="")
        if kind == "json":
            json.dump(rows, stream, indent=1)
        elif kind == "jsonl":
            stream.write("\n\n".join(json.dumps(row) for row in rows))
        else:
            writer = csv.DictWriter(stream, list(rows[0]), delimiter="\t" if kind == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
        content = stream.getvalue().encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(source: Path | str, tmp_path: Path, unit: str = "record", **columns: str) -> Any:
    return read_records(
        source, columns or COLUMNS, unit=unit, cache_dir=tmp_path / "cache", key="sites.a.data"
    )


FORMATS = (
    *("a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.csv", "a.csv.gz", "a.tsv", "a.tsv.gz"),
    *("a.parquet", "a.arrow", "a.feather", "a.saved"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / name, ROWS)
    capfd.readouterr()

    def no_network(*args: object, **kwargs: object) -> None:
        raise AssertionError("reached for the network")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    records = read(path, tmp_path, unit="patient")
    assert records[:] == EXPECTED
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.saved"])
def test_the_cache_is_the_owners_and_holds_no_other_column(name: str, tmp_path: Path) -> None:
    read(write(tmp_path / name, ROWS), tmp_path)
    cache = tmp_path / "cache"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    files = [file for file in cache.rglob("*") if file.is_file()]
    assert any(b"2020-01-01" in file.read_bytes() for file in files)
    assert not any(b"078-05-1120" in file.read_bytes() for file in files)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet", "a.saved"])
def test_a_changed_file_is_read_again(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, [{"note": "old"}])
    assert read(path, tmp_path, text="note")["text"][:] == ["old"]
    write(path, [{"note": "new"}])
    assert read(path, tmp_path, text="note")["text"][:] == ["new"]
    assert read(path, tmp_path, prompt="note").column_names == ["prompt"]


def test_numbers_become_text_one_by_one(tmp_path: Path) -> None:
    values: list[Any] = [1, 1.0, 1.5, True, None, float("nan"), 2**60]
    path = write(tmp_path / "a.jsonl", [{"note": value} for value in values])
    texts = read(path, tmp_path, text="note")["text"][:]
    assert texts == ["1", "1", "1.5", "True", None, None, str(2**60)]


def test_one_column_may_serve_two_fields(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ROWS)
    assert read(path, tmp_path, unit="ssn", text="ssn")["unit"][:] == ["078-05-1120", "x", "x"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_messages_keep_their_structure(name: str, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b"}]
    path = write(tmp_path / name, [{"talk": talk}, {"talk": talk[:1]}])
    assert read(path, tmp_path, messages="talk")["messages"][:] == [talk, talk[:1]]


def test_messages_elsewhere_are_json_text_and_other_lists_are_refused(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hé"}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"a": talk, "b": "text", "c": ["no", "talk"]}))
    assert json.loads(read(path, tmp_path, text="a")["text"][0]) == talk
    with pytest.raises(DataError, match="holds a value of type list where text is expected"):
        read(path, tmp_path, text="c")
    with pytest.raises(DataError, match="holds a value of type list where text is expected"):
        read(path, tmp_path, text="a", label="b")  # a classifier reads texts


def test_messages_as_json_in_a_csv(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "a"}]
    path = write(tmp_path / "a.csv", [{"talk": json.dumps(talk)}, {"talk": "not JSON"}])
    assert read(path, tmp_path, messages="talk")["messages"][:] == [talk, "not JSON"]


def test_a_lone_surrogate_spoils_no_other_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"note": "\\ud800"}\n{"note": "fine"}\n')
    assert read(path, tmp_path, text="note")["text"][:] == ["?", "fine"]


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("note\nhello\n", encoding="utf-8-sig")
    assert read(path, tmp_path, text="note")["text"][:] == ["hello"]


def test_a_long_csv_field(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"note": "x" * 200_000}])
    assert len(read(path, tmp_path, text="note")["text"][0]) == 200_000


CELLS = st.one_of(
    st.sampled_from(["1", "007", "1.0", "NA", "null", "true", "2020-01-01", "nan", ""]),
    st.text(max_size=5),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(CELLS, min_size=1, max_size=5), st.sampled_from(["csv", "jsonl", "json"]), st.data()
)
def test_a_row_reads_the_same_whatever_else_is_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], kind: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("independence")
    if kind == "csv":  # a CSV has one kind of line end, and no row that is its header
        texts = [text.replace("\r", "").replace("\x00", "") for text in texts]
    rows = [{"n": str(n), "note": text} for n, text in enumerate(texts)]
    kept = data.draw(st.permutations(rows))[: data.draw(st.integers(1, len(rows)))]
    records = read(write(folder / f"a.{kind}", kept), folder, text="note", label="n")
    assert records["text"][:] == [row["note"] for row in kept]


def failure(source: Path | str, tmp_path: Path, unit: str = "record", **columns: str) -> DataError:
    with pytest.raises(DataError) as caught:
        read(source, tmp_path, unit, **columns)
    assert caught.value.file is not None
    assert caught.value.key is not None
    assert caught.value.fix
    return caught.value


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "notes.jsonl", ROWS)
    error = failure(tmp_path / "note.jsonl", tmp_path)
    assert error.problem == "no such file"
    assert "notes.jsonl" in error.fix
    assert error.key == "sites.a.data"


def test_a_relative_name_of_a_missing_file_is_not_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: pytest.fail("asked the hub"))
    for name in ("data/notes.jsonl", "data/notes.csv.gz", "notes"):
        assert failure(name, tmp_path).problem == "no such file"


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_column_names_those_there_are(name: str, tmp_path: Path) -> None:
    error = failure(write(tmp_path / name, ROWS), tmp_path, text="nota")
    assert (error.key, error.value) == ("data.columns.text", "nota")
    assert "'note'" in error.fix
    assert "patient" in error.fix
    unit = failure(write(tmp_path / f"b{name}", ROWS), tmp_path, unit="patent", text="note")
    assert (unit.key, unit.value) == ("privacy.unit", "patent")
    assert "'patient'" in unit.fix


def test_a_json_record_may_lack_a_key(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"other": "x"}, {"note": "y"}])
    assert read(path, tmp_path, text="note")["text"][:] == [None, "y"]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl", ""), ("a.json", "[]"), ("a.csv", ""), ("a.csv", "note\n"), ("a.tsv", "note\n")],
)
def test_an_empty_site_is_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert "empty site" in failure(tmp_path / name, tmp_path, text="note").problem


@pytest.mark.parametrize("name", ["a.parquet", "a.saved", "a.arrow"])
def test_an_empty_table_is_refused(name: str, tmp_path: Path) -> None:
    none = datasets.Dataset.from_dict({"note": []})
    path = tmp_path / name
    if name == "a.parquet":
        none.to_parquet(path)
    elif name == "a.saved":
        none.save_to_disk(path)
    else:
        with pyarrow.OSFile(str(path), "wb") as file:
            pyarrow.ipc.new_stream(file, pyarrow.schema([("note", pyarrow.string())])).close()
    assert "empty site" in failure(path, tmp_path, text="note").problem


SECRET = "Mrs Jones has gout"
DAMAGED = {
    "line.jsonl": f'{{"note": "fine"}}\n{{"note": "{SECRET}\n'.encode(),
    "array.json": f'[{{"note": "{SECRET}"'.encode(),
    "scalar.jsonl": f'{{"note": "fine"}}\n"{SECRET}"\n'.encode(),
    "latin.csv": f"note\n{SECRET} caf\xe9\n".encode("latin-1"),
    "fields.csv": f"note\nfine\n{SECRET},x\n".encode(),
    "quote.csv": f'note\nfine\n"{SECRET}\nmore\nand more\n'.encode(),
    "not.jsonl.gz": SECRET.encode(),
    "cut.jsonl.gz": gzip.compress(SECRET.encode() * 99)[:-12],
    "not.parquet": SECRET.encode() * 9,
    "not.arrow": SECRET.encode() * 9,
    "list.jsonl": json.dumps({"note": [SECRET]}).encode(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_without_quoting_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(DAMAGED[name])
    error = failure(tmp_path / name, tmp_path, text="note")
    assert "Jones" not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


def test_the_number_of_a_bad_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"note": "x"}\n\n{oops\n')
    assert failure(tmp_path / "a.jsonl", tmp_path).problem == "line 3 is not JSON"


@pytest.mark.parametrize("name", ["notes.xlsx", "notes", "notes.parquet.gz"])
def test_an_unknown_format_lists_the_known(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    error = failure(tmp_path / name, tmp_path)
    assert error.problem == "unknown format"
    assert ".parquet" in error.fix


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "save_to_disk" in failure(tmp_path / "folder", tmp_path).problem


def test_a_saved_dictionary_of_splits(tmp_path: Path) -> None:
    one = datasets.Dataset.from_list(ROWS)
    for splits, name in (({"train": one, "test": one}, "a"), ({"only": one}, "b")):
        datasets.DatasetDict(splits).save_to_disk(tmp_path / name)
        assert read(tmp_path / name, tmp_path)["text"][:] == EXPECTED["text"]
    datasets.DatasetDict({"x": one, "y": one}).save_to_disk(tmp_path / "c")
    assert failure(tmp_path / "c", tmp_path).value == ["x", "y"]


@pytest.mark.parametrize("missing", [None, "", "  ", float("nan"), "nan", "NULL", "?"])
def test_a_missing_unit_id_names_its_row(missing: object, tmp_path: Path) -> None:
    rows = [{"note": "x", "patient": "1"}, {"note": SECRET, "patient": missing}]
    error = failure(write(tmp_path / "a.jsonl", rows), tmp_path, unit="patient", text="note")
    assert error.problem == "line 3 has no unit id"  # an empty one is between them
    assert (error.key, error.value) == ("privacy.unit", "patient")
    assert "Jones" not in str(error)


def test_a_hub_dataset_is_asked_for_with_the_sites_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load_dataset(name: str, cache_dir: str) -> datasets.DatasetDict:
        asked.append((name, cache_dir))
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("owner/name", tmp_path, unit="patient")[:] == EXPECTED
    assert asked == [("owner/name", str(tmp_path / "cache"))]

    def offline(name: str, cache_dir: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert "ConnectionError" in failure("owner/name", tmp_path).problem


def test_progress_bars_are_given_back(tmp_path: Path) -> None:
    datasets.enable_progress_bars()
    read(write(tmp_path / "a.jsonl", ROWS), tmp_path)
    assert not datasets.are_progress_bars_disabled()


@pytest.mark.parametrize(
    "names",
    [
        ("José", "Jose\u0301"),
        ("7", "7\u200b", "\ufeff7", " 7 ", "７"),
        ("a\u00adb", "ab"),
        ("7", "7\ufe0f", "7\U000e0101", "7\u034f", "\u31647"),
    ],
)
def test_ids_that_look_alike_are_one_persons(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps({"id": name, "note": "x"}) + "\n" for name in names))
    records = read_records(path, {"text": "note"}, unit="id", cache_dir=tmp_path / "c", key="data")
    assert len({record[UNIT] for record in records}) == 1


def test_a_transform_that_sees_several_rows_is_not_left_out_in_silence(tmp_path: Path) -> None:
    scrubbed = datasets.Dataset.from_list([{"note": "secret"}] * 3).with_transform(
        lambda batch: {"note": ["***"] * len(batch["note"])}
    )
    with pytest.raises(DataError, match="has a transform") as found:
        take_records(
            scrubbed, {"text": "note"}, unit="record", key="data", cache_dir=tmp_path / "cache"
        )
    assert "secret" not in str(found.value)


@pytest.mark.parametrize("kind", ["DatasetDict", "IterableDataset"])
def test_splits_and_streams_are_no_rows(kind: str, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"note": "secret"}] * 3)
    kinds = {"DatasetDict": datasets.DatasetDict(a=rows)}
    given: Any = kinds.get(kind) or rows.to_iterable_dataset()
    with pytest.raises(DataError, match=f"is a {kind}, where rows are expected"):
        take_records(given, {"text": "note"}, unit="record", key="data", cache_dir=tmp_path / "c")


def test_records_in_memory_are_those_of_a_file(tmp_path: Path) -> None:
    """A value is converted alone, whatever else is in its column."""
    rows = [{"note": 7, "mrn": " 1 "}, {"note": None, "mrn": 1.0}, {"note": "x", "mrn": "2"}]
    file = tmp_path / "notes.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns: Any = {"columns": {"text": "note"}, "unit": "mrn", "key": "data"}
    expected = read_records(file, cache_dir=tmp_path / "cache", **columns).to_list()
    assert take_records(rows, cache_dir=tmp_path / "cache", **columns).to_list() == expected
    alike = datasets.Dataset.from_list([{"note": "7", "mrn": 1}, {"note": "x", "mrn": 2}])
    found = take_records(alike, cache_dir=tmp_path / "cache", **columns).to_list()
    assert found == [{"text": "7", "unit": "1"}, {"text": "x", "unit": "2"}]
    with pytest.raises(DataError, match=r"the records in memory: .* row 1 has no unit id"):
        take_records([{"note": "secret", "mrn": ""}], cache_dir=tmp_path / "cache", **columns)


@pytest.mark.parametrize("kind", ["memory", "a.saved", "a.parquet", "a.arrow"])
def test_classes_have_their_names(kind: str, tmp_path: Path) -> None:
    """As `datasets` keeps them, they are numbers; -1 stands for none."""
    features = datasets.Features(
        {"note": datasets.Value("string"), "class": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = [{"note": f"n{i}", "class": number} for i, number in enumerate((1, 0, None, -1))]
    made, path = datasets.Dataset.from_list(rows, features=features), tmp_path / kind
    given: dict[str, Any] = {"unit": "record", "cache_dir": tmp_path / "cache"}
    if kind == "memory":
        found = take_records(made.with_format("numpy"), COLUMNS, key="records", **given)
    else:
        if kind == "a.parquet":
            made.to_parquet(path)
        else:
            made.save_to_disk(tmp_path / "saved")
        if kind == "a.arrow":
            next((tmp_path / "saved").glob("*.arrow")).rename(path)
        source = tmp_path / "saved" if kind == "a.saved" else path
        found = read_records(source, COLUMNS, key="sites.a.data", **given)
    assert list(found["label"]) == ["pos", "neg", None, None]


@pytest.mark.parametrize(
    "value", [None, float("nan"), np.float32("nan"), Decimal("NaN"), pandas.NA, pandas.NaT]
)
def test_what_says_that_there_is_nothing_is_no_text(value: Any, tmp_path: Path) -> None:
    rows = [{"note": "a", "class": value}, {"note": "b", "class": "nan"}]
    found = take_records(rows, COLUMNS, unit="record", key="k", cache_dir=tmp_path / "cache")
    assert list(found["label"]) == [None, "nan"]


TALK = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
TABLES = {
    "DataFrame": pandas.DataFrame,
    "DataFrame with an index": lambda columns: pandas.DataFrame(columns, index=["x", "y", "z"]),
    "DataFrame as Parquet gives it": lambda columns: pandas.DataFrame(
        columns | {"messages": [np.array(talk) for talk in columns["messages"]]}
    ),
    "Arrow": pyarrow.table,
    "data set": datasets.Dataset.from_dict,
}


@pytest.mark.parametrize("kind", TABLES)
def test_what_holds_records_by_column_is_read_as_its_rows(kind: str, tmp_path: Path) -> None:
    columns = {"mrn": [3, 7, 3], "messages": [TALK, TALK[:1], TALK], "other": [None, "x", None]}
    made: Any = TABLES[kind]  # type: ignore[operator]
    assert columns_of(made(columns)) == {"messages": "messages"}
    given: Any = {"unit": "mrn", "cache_dir": tmp_path / "cache", "key": "records"}
    found = take_records(made(columns), {"messages": "messages"}, **given).to_list()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    assert found == take_records(rows, {"messages": "messages"}, **given).to_list()
    assert [row["unit"] for row in found] == ["3", "7", "3"]


def test_a_value_of_a_column_is_converted_alone(tmp_path: Path) -> None:
    given: Any = {"unit": "mrn", "cache_dir": tmp_path / "cache", "key": "records"}
    table: Any = pandas.DataFrame({"note": [7, None, "x"], "mrn": [1, 2.0, " 3 "]})
    assert take_records(table, {"text": "note"}, **given).to_list() == [
        {"text": "7", "unit": "1"},
        {"text": None, "unit": "2"},
        {"text": "x", "unit": "3"},
    ]
    rounded: Any = pandas.DataFrame({"note": ["a"], "mrn": np.array([2**25], "float32")})
    with pytest.raises(DataError, match="rounded number"):
        take_records(rounded, {"text": "note"}, **given)


ROW = {"text": "secret"}


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (pandas.DataFrame([["secret", "a"]], columns=["text", "text"]), "have one name"),
        (pandas.DataFrame, "is a type, where rows"),
        (pandas.Series(["secret"]), "row 1 is a str"),
        (pyarrow.table({"text": ["secret"]}).to_reader(), "they are read more than once"),
        (datasets.DatasetDict(train=datasets.Dataset.from_list([ROW])), "records['train']"),
        (datasets.Dataset.from_list([ROW]).to_iterable_dataset(), "is a IterableDataset"),
        ({"text": "secret"}, "is a dict, where rows"),
        ({"text": ["secret"]}, "Turn a dictionary of columns into a data set"),
        ({"text": ["secret"], "label": ["a", "b"]}, "datasets.Dataset.from_dict"),
        ({"north": [ROW]}, "is a dict, where rows"),
        ({}, "is a dict, where rows"),
        ((row for row in [ROW]), "is a generator, where rows"),
        ("secret.jsonl", "is a str, where rows"),
        (b"secret", "is a bytes, where rows"),
        (None, "is a NoneType, where rows"),
        (3, "is a int, where rows"),
        (list, "is a type, where rows"),
        (np.array(1.0), "is a ndarray, where rows"),
        (["secret"], "row 1 is a str"),
        ([ROW, ["secret"]], "row 2 is a list"),
    ],
)
def test_what_is_no_rows_is_refused_for_what_it_is(records: Any, words: str) -> None:
    for read_rows in (lambda: list(rows_of(records, "records")), lambda: columns_of(records)):
        with pytest.raises(DataError) as found:
            read_rows()
        assert words in str(found.value) and found.value.key == "records" and found.value.fix
        assert "secret" not in str(found.value)
