"""Notes come from a database one by one, each by itself; what is wrong is said without a note."""

from __future__ import annotations

import os
import sqlite3
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.config.ehr import OmopSection
from fedpriv.config.load import absolute
from fedpriv.data import omop
from fedpriv.data.held_out import read_own
from fedpriv.data.read import read_records
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError
from tests.data.omop_notes import COLUMNS, GERMAN, NOTES, NURSING, Note, note, sqlite

SECRET = "the patient is a famous singer"


def read(section: OmopSection, tmp_path: Path, unit: str = "person_id", **columns: str) -> Any:
    return read_records(
        section, columns or COLUMNS, unit=unit, cache_dir=tmp_path / "cache", key="sites.a.data"
    )


def section(tmp_path: Path, notes: Sequence[Note] = NOTES, **settings: Any) -> OmopSection:
    (tmp_path / "cdm.db").unlink(missing_ok=True)
    url = sqlite(tmp_path / "cdm.db", notes, key=settings.pop("key", True))
    return OmopSection.model_validate({"url": url, **settings})


def test_notes_and_whose_they_are(tmp_path: Path) -> None:
    records = read(section(tmp_path), tmp_path)
    assert records["text"][:] == ["first, café", "second", "third"]
    assert records["unit"][:] == ["7", "8", "7"]  # the person, never the number of the row


def test_any_column_may_be_a_field(tmp_path: Path) -> None:
    columns = {"text": "note_text", "label": "note_type_concept_id"}
    found = read(section(tmp_path), tmp_path, "record", **columns)
    assert found["label"][1] == str(NURSING)
    assert set(found.column_names) == {"text", "label"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["first, café", "second", "third", "undated"]),
        ({"note_type_concept_id": [NURSING]}, ["second"]),
        ({"language_concept_id": [GERMAN]}, ["third"]),
        ({"first_date": "2020-01-01"}, ["second", "third"]),
        ({"last_date": "2020-01-01"}, ["first, café", "second"]),
        ({"first_date": "2020-01-01", "last_date": date(2020, 12, 31)}, ["second"]),
    ],
)
def test_a_filter_keeps_or_leaves_out_each_note_by_itself(
    settings: dict[str, Any], expected: list[str], tmp_path: Path
) -> None:
    undated = note(9, 9, "undated", note_date=None, language_concept_id=None)
    assert read(section(tmp_path, (*NOTES, undated), **settings), tmp_path)["text"][:] == expected


def made(path: Path, rows: Sequence[tuple[Any, ...]], *, upper: bool = False) -> str:
    """The URL of an SQLite database with these values of id, person, date, type and text."""
    names = "note_id, person_id, note_date, note_type_concept_id, note_text"
    with closing(sqlite3.connect(path)) as base, base:
        statement = f"CREATE TABLE note ({names})"
        base.execute(statement.upper() if upper else statement)
        base.executemany("INSERT INTO note VALUES (?, ?, ?, ?, ?)", rows)
    return f"sqlite:///{path}"


def seconds(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()


KEPT: dict[str, Any] = {
    "text": date.isoformat,
    "time": lambda day: f"{day} 10:30:00",
    "instant": lambda day: f"{day}T23:59:59Z",
    "digits": lambda day: f"{day:%Y%m%d}",
    "number": lambda day: int(f"{day:%Y%m%d}"),
    "seconds": seconds,
    "whole seconds": lambda day: int(seconds(day)),
    "seconds in text": lambda day: str(seconds(day)),
    "milliseconds": lambda day: int(1000 * seconds(day)),
    "days": lambda day: float((day - date(1970, 1, 1)).days),
}
REFUSED: dict[str, Any] = {
    "american": lambda day: f"{day:%m/%d/%Y}",
    "german": lambda day: f"{day:%d.%m.%Y}",
    "spreadsheet": lambda day: (day - date(1899, 12, 30)).days,
    "julian": lambda day: (day - date(1970, 1, 1)).days + 2440587.5,
    "local midnight": lambda day: seconds(day) - 7200,
    "year": lambda day: day.year,
    "bytes": lambda day: day.isoformat().encode(),
    "month": lambda day: f"{day:%Y-%m}",
}


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(days=st.lists(st.dates(date(2000, 1, 1), date(2030, 12, 31)), min_size=1, max_size=6))
def test_a_filter_of_dates_holds_however_they_are_kept(days: list[date], tmp_path: Path) -> None:
    """Each in a table of its own, and all in one: the others don't decide."""
    first, last = date(2010, 6, 1), date(2020, 6, 30)
    right = [str(n) for n, day in enumerate(days, 1) if first <= day <= last]
    ways = [*([way] * len(days) for way in KEPT), list(KEPT)]
    for written in ways:
        pairs = zip(days, written, strict=False)
        rows = [(n, n, KEPT[how](day), 1, str(n)) for n, (day, how) in enumerate(pairs, 1)]
        (tmp_path / "dates.db").unlink(missing_ok=True)
        url = made(tmp_path / "dates.db", [*rows, (99, 99, None, 1, "no date")])
        source = OmopSection(url=url, first_date=first, last_date=last)
        found = [row.values["note_text"] for row in omop.note_rows(source, ("note_text",))]
        assert found == right


@pytest.mark.parametrize("way", REFUSED)
@pytest.mark.parametrize("setting", ["first_date", "last_date"])
def test_a_date_that_could_be_another_is_refused_with_its_note(
    setting: str, way: str, tmp_path: Path
) -> None:
    day = date(2015, 6, 1)
    rows = [(1, 1, "2015-06-01", 1, "fine"), (2, 2, REFUSED[way](day), 1, SECRET)]
    url = made(tmp_path / "dates.db", rows)
    said = rf"omop.{setting}: note 2 has a note_date that can be read in several ways.* YYYY-MM-DD"
    source = OmopSection.model_validate({"url": url, setting: date(2015, 6, 1)})
    with pytest.raises(DataError, match=said) as caught:
        read(source, tmp_path)
    assert SECRET not in str(caught.value)
    assert len(read(OmopSection(url=url), tmp_path)) == 2  # without a filter no date is looked at


def test_a_kind_is_known_however_its_number_is_kept(tmp_path: Path) -> None:
    kinds = [NURSING, float(NURSING), str(NURSING), f"{NURSING}.0", None, "", 1, "1.0"]
    rows = [(n, n, None, kind, str(n)) for n, kind in enumerate(kinds, 1)]
    source = OmopSection(url=made(tmp_path / "a.db", rows), note_type_concept_id=(NURSING,))
    assert read(source, tmp_path)["text"][:] == ["1", "2", "3", "4"]
    odd = made(tmp_path / "b.db", [(1, 1, None, "nursing", SECRET)])
    with pytest.raises(DataError, match="note 1 has a note_type_concept_id that can be"):
        read(source.model_copy(update={"url": odd}), tmp_path)


def test_names_in_capitals_are_the_same_names(tmp_path: Path) -> None:
    rows = [(1, 7, "2015-06-01", 1, "old"), (2, 7.0, "2016-06-01", 1, "new")]
    url = made(tmp_path / "a.db", rows, upper=True)
    records = read(OmopSection(url=url, first_date=date(2016, 1, 1)), tmp_path)
    assert (records["text"][:], records["unit"][:]) == (["new"], ["7"])
    other = OmopSection(url=url, table="notes")
    with pytest.raises(DataError, match="Did you mean 'NOTE'"):
        read(other, tmp_path)


def test_what_is_no_text_is_refused_with_its_note(tmp_path: Path) -> None:
    for odd in (SECRET.encode(), "Schmerz für Tage".encode("latin-1")):
        (tmp_path / "a.db").unlink(missing_ok=True)
        url = made(tmp_path / "a.db", [(1, 1, None, 1, "fine"), (2, 2, None, 1, "x")])
        with closing(sqlite3.connect(tmp_path / "a.db")) as base, base:
            base.execute("UPDATE note SET note_text = CAST(? AS TEXT) WHERE note_id = 2", (odd,))
            if odd.isascii():
                base.execute("UPDATE note SET note_text = ? WHERE note_id = 2", (odd,))
        said = r"columns.text: note 2 holds a value of type bytes .* as text in UTF-8"
        with pytest.raises(DataError, match=said) as caught:
            read(OmopSection(url=url), tmp_path)
        assert SECRET not in str(caught.value)


def test_a_file_that_is_no_database_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("note_id,person_id\n1,1\n")
    with pytest.raises(DataError, match=r"a.db: sites.a.omop.url: is no SQLite database"):
        read(OmopSection(url=f"sqlite:///{tmp_path / 'a.db'}"), tmp_path)


def test_the_last_day_is_in_it_whatever_the_time_of_the_day(tmp_path: Path) -> None:
    url = sqlite(tmp_path / "cdm.db", [])
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO note (note_id, person_id, note_date, note_text)"
            " VALUES (1, 1, '2020-12-31 23:59:00', 'late'), (2, 1, '2021-01-01', 'later')"
        )
    found = read(OmopSection(url=url, last_date=date(2020, 12, 31)), tmp_path)
    assert found["text"][:] == ["late"]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    order=st.permutations(range(8)),
    others=st.lists(st.integers(0, 30), max_size=6, unique=True),
)
def test_which_notes_a_person_gives_is_decided_by_that_person_alone(
    order: list[int], others: list[int], tmp_path: Path
) -> None:
    """Whatever the order on the disk, and whoever else has notes between them."""
    own = [note(10 * i, 7, f"own {i}") for i in range(1, 9)]
    foreign = [note(1000 + i if i % 2 else 10 * i + 5, 8, "other") for i in others]
    rows = [own[i] for i in order]
    for place, row in enumerate(foreign):
        rows.insert(place * 2, row)
    found = read(section(tmp_path, rows, key=False), tmp_path)
    texts = [row["text"] for row in found if row["unit"] == "7"]
    assert texts == [f"own {i}" for i in range(1, 9)]


def test_what_was_read_stays_as_it_is_while_the_database_goes_on(tmp_path: Path) -> None:
    source = section(tmp_path)
    before = read(source, tmp_path)
    engine = sa.create_engine(source.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE note SET note_text = 'changed'")
    assert before["text"][:] == ["first, café", "second", "third"]
    assert set(read(source, tmp_path)["text"]) == {"changed"}


def test_the_reader_changes_nothing_and_makes_no_file(tmp_path: Path) -> None:
    source = section(tmp_path)
    content = (tmp_path / "cdm.db").read_bytes()
    read(source, tmp_path)
    assert (tmp_path / "cdm.db").read_bytes() == content
    missing = OmopSection(url=f"sqlite:///{tmp_path / 'none.db'}")
    with pytest.raises(DataError, match=r"none.db: sites.a.omop.url: no such file"):
        read(missing, tmp_path)
    assert not (tmp_path / "none.db").exists()


def test_notes_are_streamed(tmp_path: Path) -> None:
    size, count = 20_000, 2_000
    source = section(tmp_path, [note(i, i, "x" * size) for i in range(count)])
    read(source, tmp_path)  # imports and whatever is kept once
    tracemalloc.start()
    for _ in omop.note_rows(source, ("note_text",)):
        pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < size * count / 5  # of 40 MB


@pytest.mark.parametrize(
    ("settings", "columns", "said"),
    [
        ({"table": "nota"}, {}, r"omop.table: no such table in the database \(got 'nota'\)."
         " Did you mean 'note'"),
        ({"cdm_schema": "temp"}, {}, r"omop.table: no such table .*'temp.note'.* none that this"),
        ({}, {"text": "note_txt"}, r"columns.text: no such column .*Did you mean 'note_text'"),
        ({"url": "postgres//x"}, {}, "omop.url: is no URL of a database"),
        ({"url": "nosql://x"}, {}, "omop.url: names a kind of database that SQLAlchemy does not"),
        ({"url": "mysql://x@y/z"}, {}, "omop.url: needs the driver MySQLdb, which is not inst"),
        ({"url": "postgresql+psycopg://x@127.0.0.1:1/z"}, {}, "omop.url: can't be connected to: .*"
         "refused.* Check the address"),
        ({"url": "postgresql://x@y/z", "password_env": "FEDPRIV_TEST_NONE"}, {},
         "omop.password_env: no such environment variable.*'FEDPRIV_TEST_NONE'"),
    ],
)  # fmt: skip
def test_errors_name_what_to_do(
    settings: dict[str, Any], columns: dict[str, str], said: str, tmp_path: Path
) -> None:
    source = section(tmp_path).model_copy(update=settings)
    with pytest.raises(DataError, match=said):
        read(source, tmp_path, **columns)


def test_a_filter_needs_its_column(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'cdm.db'}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE note (note_id INT, note_text TEXT)")
    for setting, value in (("note_type_concept_id", [1]), ("last_date", "2020-01-01")):
        source = OmopSection.model_validate({"url": url, setting: value})
        with pytest.raises(DataError, match=rf"omop.{setting}: needs the column .*note_id, note_"):
            read(source, tmp_path, "record")
    with pytest.raises(DataError, match=r"privacy.unit: no such column .*'person_id'"):
        read(OmopSection(url=url), tmp_path)
    with pytest.raises(DataError, match="has no records"):
        read(OmopSection(url=url), tmp_path, "record")


def test_sqlalchemy_is_asked_for_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = section(tmp_path)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(DataError, match=r"needs SQLAlchemy.*fedpriv\[omop\]"):
        read(source, tmp_path)


def test_a_password_comes_from_elsewhere_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "postgresql+psycopg://x@127.0.0.1:1/z"
    monkeypatch.setenv("FEDPRIV_TEST_PASSWORD", "hunter2")
    by_env = OmopSection(url=url, password_env="FEDPRIV_TEST_PASSWORD")
    assert omop._url(by_env) == (sa.make_url(url).set(password="hunter2"), "hunter2")
    with pytest.raises(DataError) as caught:
        read(by_env, tmp_path)
    assert "hunter2" not in f"{caught.value!s}{caught.value!r}{caught.value.__cause__}"
    assert "hunter2" not in str(by_env)


def test_a_note_without_a_person_is_refused_and_not_quoted(tmp_path: Path) -> None:
    source = section(tmp_path, (note(1, 1, "fine"), note(2, None, SECRET)))
    with pytest.raises(DataError, match="note 2 has no unit id") as caught:
        read(source, tmp_path)
    assert SECRET not in str(caught.value)
    assert len(read(source, tmp_path, "record")) == 2


def test_a_note_that_comes_twice_is_refused_and_not_quoted(tmp_path: Path) -> None:
    rows = (note(1, 1, "fine"), note(5, 2, SECRET), note(5, 3, SECRET))
    with pytest.raises(DataError, match="note 3 has the note_id of the one before") as caught:
        read(section(tmp_path, rows, key=False), tmp_path)
    assert SECRET not in str(caught.value)


def test_what_a_database_says_while_it_reads_is_not_repeated(tmp_path: Path) -> None:
    """An error of a database may hold a value, such as one that can't be cast."""
    source = section(tmp_path, (note(1, 1, SECRET),))
    engine = sa.create_engine(source.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE VIEW broken AS SELECT note_id, person_id,"
            " json_extract('{}', note_text) AS note_text FROM note"
        )
    with pytest.raises(DataError, match=r"could not be read \(OperationalError\)") as caught:
        read(source.model_copy(update={"table": "broken"}), tmp_path)
    error: BaseException | None = caught.value
    assert SECRET not in str(error)
    assert error is not None and error.__suppress_context__


def test_a_share_of_the_people_is_held_out_with_all_their_notes(tmp_path: Path) -> None:
    rows = [note(i, i % 40, f"note {i}") for i in range(120)]
    own = read_own(
        section(tmp_path, rows),
        0.3,
        DataSpec(COLUMNS, "causal-lm", (), 8, "person_id", 3),
        cache_dir=tmp_path / "cache",
        key="data.path",
    )
    trained, apart = set(own.training["unit"]), set(own.held_out["unit"])
    assert trained and apart and not trained & apart
    assert len(own.training) + len(own.held_out) == 120
    assert len(own.held_out) == 3 * len(apart)


def test_a_schema_other_than_the_users_own(tmp_path: Path) -> None:
    source = section(tmp_path, ())
    sqlite(tmp_path / "other.db")
    engine = sa.create_engine(source.url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ATTACH '{tmp_path / 'other.db'}' AS other")
        elsewhere = source.model_copy(update={"cdm_schema": "other"})
        found = omop._query(elsewhere, {"note_id": "note_id", "note_text": "note_text"}, {})
        assert len(connection.execute(found).all()) == len(NOTES)


def test_only_a_file_of_sqlite_is_a_file(tmp_path: Path) -> None:
    assert absolute(OmopSection(url="sqlite:///a/b.db"), tmp_path).file == tmp_path / "a/b.db"
    elsewhere = absolute(OmopSection(url=f"sqlite:///{tmp_path}/b.db"), Path("/x"))
    assert elsewhere.file == tmp_path / "b.db"
    server = absolute(OmopSection(url="postgresql://u@h/d"), tmp_path)
    assert server.file is None
    assert os.fspath(tmp_path) not in server.url
