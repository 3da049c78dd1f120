"""A person is one, however an id is written, or the id is refused; the documents say which."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.data import values
from fedpriv.data.dates import day_of
from fedpriv.data.read import read_records
from fedpriv.data.values import (
    DAMAGED,
    NO_ID,
    NO_TEXT,
    NOTHING,
    ROUNDED,
    TABLE,
    TWO_WAYS,
    TYPESET,
    OddValueError,
    as_id,
    as_json,
    as_text,
)
from fedpriv.errors import DataError

DOCUMENT = Path(__file__).parents[2] / "docs/how-to/data.md"
NUMPY = (np.int64, np.float64, np.float32, np.str_)


def ways(number: int) -> list[Any]:
    """As programs write a whole number."""
    small = abs(number) < 2**24
    exponent = len(str(abs(number))) - 1
    written = f"{number / 10**exponent:.{max(exponent, 1)}f}e{exponent}" if small else f"{number}"
    return [
        *(number, float(number), Decimal(number), Decimal(f"{number}.00"), str(number)),
        *(f" {number}\t", f"{number}.0", f"{number}.00", f"{number}.", f"\ufeff{number}\u200b"),
        *(written, f"{number:+d}", f"{float(number):.18e}"),
        *((f"{number}e0", f"{number}.0E+00") if abs(number) < 10 else ()),
        *(kind(number) for kind in NUMPY if small or kind is not np.float32),
    ]


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_a_number_is_one_person_however_it_is_written(number: int) -> None:
    assert {as_id(way) for way in ways(number)} == {str(number)}


@given(st.from_regex(r"[1-9][0-9]{1,8}[eE][+-]?[0-9]{1,3}", fullmatch=True))
def test_a_code_that_looks_like_a_power_is_nobody_elses_number(code: str) -> None:
    """Hexadecimal codes such as 1200e5, 120e06 and 120000000 are three people."""
    try:
        assert as_id(code) == code
    except OddValueError as error:
        assert error.rule is TWO_WAYS


@given(st.integers(2**53), st.integers(-400, 400))
def test_a_number_that_a_float_cannot_hold_is_no_float(number: int, power: int) -> None:
    assert as_id(number) == as_id(str(number)) == as_id(Decimal(number)) == str(number)
    for way in (float(min(number, 2**1000)), f"{number}.0", repr(float(min(number, 2**1000)))):
        with pytest.raises(OddValueError) as found:
            as_id(way)
        assert found.value.rule is ROUNDED
    if power > 0:  # what was behind the digits can't be known
        with pytest.raises(OddValueError):
            as_id(f"1e{power:02}")


@given(st.floats(width=32, min_value=2**24, max_value=2**50))
def test_a_short_float_is_rounded_sooner(number: float) -> None:
    with pytest.raises(OddValueError, match="rounded"):
        as_id(np.float32(number))


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6 - 1))
def test_a_fraction_is_one_id_or_refused(whole: int, millionths: int) -> None:
    text = f"{whole}.{millionths:06}"
    short = text.rstrip("0")
    found = set()
    for way in (float(text), np.float64(text), Decimal(text), Decimal(short), text, short):
        try:
            found.add(as_id(way))
        except OddValueError as error:
            assert error.rule is TWO_WAYS
    assert found <= {short}
    assert found or len(short.partition(".")[2]) == 3  # thousands, somewhere


@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9]{0,4}[.,' eE]?[0-9]{0,4}", fullmatch=True))
def test_an_id_that_is_read_again_is_the_same(text: str) -> None:
    try:
        found = as_id(text)
    except OddValueError as error:
        assert error.fix and (not text.strip() or text.strip() not in str(error))
        return
    assert as_id(found) == found
    assert any(c.isalnum() for c in found)
    if re.fullmatch(r"-?[1-9][0-9]*(\.[0-9]+)?", found):  # a program may make a float of it
        for way in (float(found), repr(float(found))):
            with suppress(OddValueError):
                assert as_id(way) == found


@given(st.from_regex(r"[A-Za-df-z][0-9A-Za-z]{2,8}-[0-9]{1,4}", fullmatch=True))
def test_a_code_stays_as_it_is(code: str) -> None:
    ways = (code, f" {code}\n", f'"{code}"', f"'{code}'", f'="{code}"', f"{code}\u200b")
    assert {as_id(way) for way in ways} == {code}
    assert as_id(f"{code}  x") == as_id(f"{code}\u00a0x") == f"{code} x"


def test_a_leading_zero_is_part_of_an_id() -> None:
    """As in the numbers that hospitals give: 01 and 1 may be two people."""
    assert [as_id(way) for way in ("01", "01.0", "1", "000")] == ["01", "01", "1", "000"]


@pytest.mark.parametrize(
    "value",
    [*(None, float("nan"), np.float32("nan"), Decimal("NaN"), np.datetime64("NaT"), float("inf")),
     *("", "  ", "\u200b\ufeff", "nan", "NaN", "NULL", "null", "None", "N/A", "NA", "n/a", "#N/A"),
     *("-", "?", "--", "...", "<NA>", "(null)", "\\N", "#REF!", "#VALUE!", "NaT", "1.#IND"),
     *("-nan", "unknown", "\uff1f", '""', "'NaN'")],
)  # fmt: skip
def test_what_says_nothing_is_nobody(value: Any) -> None:
    with pytest.raises(OddValueError) as found:
        as_id(value)
    assert found.value.rule is NOTHING


@pytest.mark.parametrize(
    ("value", "rule"),
    [("1,000", TWO_WAYS), ("1,0", TWO_WAYS), ("1.000", TWO_WAYS), ("1.000.000", TWO_WAYS),
     ("1'000", TWO_WAYS), ("1,23E+15", TWO_WAYS),
     ("943 476 5919", TWO_WAYS), ("1\u00a0000", TWO_WAYS), (1.234, TWO_WAYS),
     ("12.50", TWO_WAYS), ("1e+16", ROUNDED), ("1.23E+05", ROUNDED), (True, NO_ID),
     ("True", NO_ID), (np.bool_(False), NO_ID), (date(2020, 1, 1), NO_ID),
     (datetime(2020, 1, 1, tzinfo=UTC), NO_ID), (np.datetime64("2020-01-01"), NO_ID),
     ("1200e5", TWO_WAYS), ("12e0", TWO_WAYS), ("12–345", TYPESET), ("−1", TYPESET),
     ("“7a”", TYPESET), ("«7»", TYPESET),
     *((f"O{c}Brien12", TYPESET) for c in sorted(values._ALIKE)),
     ("7\ud800", DAMAGED), ("M\ufffdller", DAMAGED), ("7\0", DAMAGED), ("a\nb", DAMAGED),
     (b"7", NO_TEXT), (bytearray(b"7"), NO_TEXT), (np.bytes_(b"7"), NO_TEXT), ([7], NO_TEXT),
     ({"id": 7}, NO_TEXT), (np.array([7]), NO_TEXT), (object(), NO_TEXT)],
)  # fmt: skip
def test_what_could_be_several_people_is_refused(value: Any, rule: Any) -> None:
    with pytest.raises(OddValueError) as found:
        as_id(value)
    assert found.value.rule is rule


def test_texts_are_as_they_were_written() -> None:
    kept = [(" 1.0 ", " 1.0 "), ("NA", "NA"), (7.0, "7"), (0.1, "0.1"), (np.float32(0.1), "0.1")]
    kept += [(Decimal("7.50"), "7.50"), (True, "True"), ("\ud800x", "?x"), (None, None)]  # type: ignore[list-item]
    kept += [(float("nan"), None), (date(2020, 1, 31), "2020-01-31")]  # type: ignore[list-item]
    assert [as_text(value) for value, _ in kept] == [text for _, text in kept]
    for odd in (b"x", ["x"], {"x": 1}, np.array(["x"]), object()):
        with pytest.raises(OddValueError, match="where text is expected"):
            as_text(odd)


def test_a_conversation_is_json_without_bytes() -> None:
    assert json.loads(as_json([{"n": np.int64(1), "d": date(2020, 1, 31)}])) == [
        {"n": "1", "d": "2020-01-31"}
    ]
    round_and_round: list[Any] = []
    round_and_round.append(round_and_round)
    for odd in ([b"x"], {(1, 2): "x"}, round_and_round, [{"content": object()}]):
        with pytest.raises(OddValueError, match="where text is expected"):
            as_json(odd)


def test_the_documents_have_the_table() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    for kind, text, id_, fix in TABLE:
        said = [part.format("a value of type bytes") for part in (text, id_)]
        refused = "{}" in text, bool(fix)
        cells = [f"refused: {w}" if odd else w for w, odd in zip(said, refused, strict=True)]
        assert f"| {kind} | {' | '.join(cells)} |\n" in written


FORMATS = ("csv", "tsv", "jsonl", "json", "parquet", "arrow")


def write(path: Path, ids: list[Any]) -> Path:
    """Records of these ids, in the format that the name tells."""
    rows = [{"id": one, "note": f"note {n}"} for n, one in enumerate(ids)]
    if path.suffix in (".csv", ".tsv"):
        delimiter = "," if path.suffix == ".csv" else "\t"
        lines = [delimiter.join((str(row["id"]), row["note"])) for row in rows]
        path.write_text("\n".join([f"id{delimiter}note", *lines]), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        table = pa.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
    return path


def ids_of(path: Path, folder: Path) -> list[str]:
    found = read_records(path, {"text": "note"}, unit="id", cache_dir=folder / "cache", key="data")
    return [str(one) for one in found["unit"]]


@pytest.mark.slow
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(numbers=st.lists(st.integers(0, 2**40), min_size=1, max_size=4))
@pytest.mark.parametrize("kind", FORMATS)
def test_an_identity_is_one_in_every_format(
    kind: str, numbers: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ids")
    for number, typed in enumerate((int, float, str, lambda n: f" {n}.0")):
        path = write(folder / f"a{number}.{kind}", [typed(one) for one in numbers])
        assert ids_of(path, folder) == [str(one) for one in numbers]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_gap_that_made_floats_of_integers_is_refused_with_its_row(
    kind: str, tmp_path: Path
) -> None:
    path = write(tmp_path / f"a.{kind}", [1.0, float("nan"), 3.0])
    with pytest.raises(DataError, match=r"(row|line|record) (2|3).* has no unit id .*fill it in"):
        ids_of(path, tmp_path)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float16(), pa.float64()])
def test_a_column_of_rounded_ids_is_refused(kind: Any, tmp_path: Path) -> None:
    exact = {2: 2**11, 4: 2**24, 8: 2**53}[kind.bit_width // 8]
    for suffix in ("parquet", "arrow"):
        for largest, refused in ((exact - 1, False), (exact, True)):
            if kind == pa.float16() and suffix == "parquet":
                continue  # not every version of it has them
            column = pa.array(np.array([1, largest], kind.to_pandas_dtype()), kind)
            table = pa.table({"id": column, "note": ["a", "b"]})
            path = tmp_path / f"a.{suffix}"
            if suffix == "parquet":
                pyarrow.parquet.write_table(table, path)
            else:
                with pa.ipc.new_stream(path, table.schema) as writer:
                    writer.write_table(table)
            if refused:
                with pytest.raises(DataError, match="row 2 has a unit id that is a rounded"):
                    ids_of(path, tmp_path)
            else:
                assert ids_of(path, tmp_path) == ["1", str(largest)]


@given(st.dates(date(1974, 1, 1), date(2099, 12, 31)))
def test_a_day_is_the_same_however_it_is_kept_or_refused(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    seconds = days * 86_400
    sure = [day, datetime(day.year, day.month, day.day, 23, 59, tzinfo=UTC), day.isoformat()]
    sure += [f"{day} 00:00:00", f"{day}T10:00:00Z", f"{day:%Y/%m/%d}", f"{day:%Y%m%d}"]  # type: ignore[list-item]
    sure += [int(f"{day:%Y%m%d}"), float(f"{day:%Y%m%d}")]  # type: ignore[list-item]
    assert {day_of(one) for one in sure} == {day}
    for way in (days, float(days), seconds, float(seconds), str(seconds), seconds * 1000):
        try:
            found = day_of(way)
        except ValueError:
            assert way == days  # a year, or of a spreadsheet, which begins in 1900
        else:
            assert found == day
    for way in (f"{day:%m/%d/%Y}", f"{day:%d.%m.%Y}", f"{day:%d-%b-%y}", seconds + 3600.5):  # type: ignore[assignment]
        with pytest.raises(ValueError, match="no day"):
            day_of(way)


@pytest.mark.parametrize(
    "value", [2015, 42156, 2457175, 201506, 0, "00000000", 1460, -5, True, b"2015", "2015-02-30"]
)
def test_a_number_that_may_be_another_day_is_refused(value: Any) -> None:
    """A year, days of a spreadsheet or since 4713 BC, a month, what stands for no date."""
    with pytest.raises(ValueError, match="no day"):
        day_of(value)


@pytest.mark.parametrize("value", [None, "", " ", "NULL", float("nan")])
def test_no_date_is_none(value: Any) -> None:
    assert day_of(value) is None
