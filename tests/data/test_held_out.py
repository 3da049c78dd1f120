"""Units that a site keeps apart: by themselves, whole, and the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.held_out import HELD_OUT, VALIDATION, OwnRecords, is_apart, read_own
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError

SHARE = 0.3
texts = st.text(min_size=1, max_size=30)


def own(
    folder: Path, rows: list[dict[str, Any]], held_out: Path | float | None, unit: str = "record"
) -> OwnRecords:
    file = folder / "notes.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_own(
        file,
        held_out,
        DataSpec({"text": "note"}, "causal-lm", (), 8, unit, 1),
        cache_dir=folder / "cache",
        key="data.path",
    )


def notes(count: int) -> list[dict[str, Any]]:
    return [{"note": f"note number {i}", "patient": f"p{i // 3}"} for i in range(count)]


@given(texts, texts, st.floats(0.01, 0.99))
def test_who_is_apart_is_decided_by_the_unit_alone(text: str, other: str, share: float) -> None:
    """Of a patient by the id, whatever is written; of a record by what is, as people read it."""
    by_id = {is_apart({"text": t, "unit": "7"}, "mrn", share, HELD_OUT) for t in (text, other)}
    assert len(by_id) == 1
    record = is_apart({"text": text}, "record", share, HELD_OUT)
    assert record == is_apart({"text": f" {text}\n"}, "record", share, HELD_OUT)


@given(st.floats(0.05, 0.95), st.sampled_from([HELD_OUT, VALIDATION]))
def test_a_share_is_about_what_was_asked_for(share: float, purpose: str) -> None:
    count = 2000
    apart = sum(is_apart({"text": f"{i}"}, "record", share, purpose) for i in range(count))
    assert abs(apart / count - share) < 5 * (share * (1 - share) / count) ** 0.5


def test_a_larger_share_holds_the_smaller_one() -> None:
    """So that what was held out once is held out still."""
    few, more = (
        {i for i in range(500) if is_apart({"text": f"{i}"}, "record", share, HELD_OUT)}
        for share in (0.1, 0.4)
    )
    assert few < more


def test_draws_of_two_purposes_are_independent() -> None:
    both = [
        (is_apart(r, "record", 0.5, HELD_OUT), is_apart(r, "record", 0.5, VALIDATION))
        for r in ({"text": f"{i}"} for i in range(2000))
    ]
    assert all(400 < both.count(pair) < 600 for pair in set(both))
    assert len(set(both)) == 4


def test_an_empty_record_trains() -> None:
    assert not is_apart({"text": "  "}, "record", 0.999999, HELD_OUT)
    assert not is_apart({"text": "a"}, "record", 0.0, HELD_OUT)


def test_a_file_is_parted_by_unit_and_rows_keep_their_numbers(tmp_path: Path) -> None:
    rows = notes(90)
    found = own(tmp_path, rows, SHARE, unit="patient")
    training, held_out = found.training["unit"], found.held_out["unit"]
    assert set(training).isdisjoint(held_out)
    assert len(training) + len(held_out) == len(rows)
    assert 9 < len(held_out) < 54
    assert [rows[n - 1]["note"] for n in found.rows] == list(found.training["text"])


def test_without_held_out_records_everything_trains(tmp_path: Path) -> None:
    found = own(tmp_path, notes(5), None)
    assert list(found.rows) == [1, 2, 3, 4, 5]
    assert (len(found.training), len(found.held_out)) == (5, 0)


def test_taking_a_unit_away_moves_no_other(tmp_path: Path) -> None:
    """Law 2: adding or removing one unit changes one side by that unit."""
    rows = notes(40)
    whole, without = (own(tmp_path, part, SHARE) for part in (rows, rows[:7] + rows[8:]))
    for part in ("training", "held_out"):
        before, after = (set(getattr(one, part)["text"]) for one in (whole, without))
        assert before - after <= {rows[7]["note"]}
        assert after <= before


def test_a_file_of_further_records_is_held_out_whole(tmp_path: Path) -> None:
    further = tmp_path / "further.jsonl"
    further.write_text('{"note": "another", "patient": "q"}\n')
    found = own(tmp_path, notes(6), further)
    assert len(found.training) == 6
    assert found.held_out["text"] == ["another"]


@pytest.mark.parametrize("unit", ["record", "patient"])
def test_a_unit_in_both_files_is_refused(tmp_path: Path, unit: str) -> None:
    further = tmp_path / "further.jsonl"
    further.write_text(
        '{"note": "new", "patient": "q"}\n{"note": "note number 2", "patient": "p0"}\n'
    )
    with pytest.raises(DataError) as caught:
        own(tmp_path, notes(6), further, unit)
    assert caught.value.key == "data.held_out"
    assert "the first is row 2" in str(caught.value)


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_a_share_that_leaves_nothing_is_refused(tmp_path: Path, share: float) -> None:
    with pytest.raises(DataError) as caught:
        own(tmp_path, notes(6), share)
    assert (caught.value.key, caught.value.value) == ("data.held_out", share)
