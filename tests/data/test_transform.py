"""A site's own function sees one text at a time, and what it fails on contributes nothing."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.data.held_out import OwnRecords, read_own
from fedpriv.data.spec import DataSpec
from fedpriv.data.transform import find_transform, remembers
from fedpriv.errors import DataError

SECRET = "the patient is a famous singer"
MODULE = '''
import itertools, random

not_a_function = 7
numbers = itertools.count(1)

def upper(text):
    assert isinstance(text, str)
    return text.upper()

def picky(text):
    """Fails on some, each in its own way, and quotes what it fails on."""
    if "singer" in text:
        raise ValueError(text)
    return None if "nothing" in text else text.upper()

def by_chance(text):
    return f"{text} {random.random()}"

def in_order(text):
    """Numbers the texts as they come: what must not be."""
    return f"{text} by patient {next(numbers)}"

def panics(text):
    raise type("Panic", (BaseException,), {})(text)
'''
Own = Callable[..., OwnRecords]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Own:
    """Read rows of a site that has a module of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "scrubbing", raising=False)
    (tmp_path / "scrubbing.py").write_text(MODULE)

    def read(
        rows: list[dict[str, Any]],
        transform: str | None,
        held_out: float | Path | None = None,
        *,
        unit: str = "mrn",
        **columns: str,
    ) -> OwnRecords:
        (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_own(
            tmp_path / "notes.jsonl",
            held_out,
            DataSpec(columns or {"text": "note"}, "causal-lm", ("a", "b"), 8, unit, 1),
            cache_dir=tmp_path / "cache",
            key="data.path",
            transform=transform and f"scrubbing:{transform}",
        )

    return read


def row(number: int, note: str, **others: Any) -> dict[str, Any]:
    return {"mrn": f"m{number}", "note": note, **others}


def test_every_text_goes_through_and_ids_and_labels_do_not(own: Own) -> None:
    talk = [
        {"role": "user", "content": "who?", "name": SECRET},
        {"role": "assistant", "content": "me"},
    ]
    rows = [row(1, "one", kind="a"), {"mrn": "m2", "note": None, "kind": "b"}]
    found = own(rows, "upper", text="note", label="kind").training
    assert list(found) == [
        {"text": "ONE", "label": "a", "unit": "m1"},
        {"text": None, "label": "b", "unit": "m2"},
    ]
    pair = own([row(1, "one", answer="two")], "upper", prompt="note", completion="answer").training
    assert pair[0] == {"prompt": "ONE", "completion": "TWO", "unit": "m1"}
    rows = [row(1, "", talk=talk), row(2, "", talk="not a conversation " + SECRET)]
    said = own(rows, "upper", messages="talk").training
    assert said[0]["messages"] == [
        {"role": "user", "content": "WHO?"},
        {"role": "assistant", "content": "ME"},
    ]
    assert SECRET not in str(list(said))


def test_nothing_is_said_of_how_many_or_how_long(
    own: Own, capfd: pytest.CaptureFixture[str]
) -> None:
    datasets.enable_progress_bars()
    own([row(number, "a") for number in range(137)], "upper")
    assert capfd.readouterr().err == ""


def test_what_it_fails_on_stays_in_its_unit_and_has_no_text(
    own: Own, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [row(1, "one"), row(1, SECRET), row(2, "nothing"), row(3, "two")]
    with caplog.at_level(logging.DEBUG):
        found = own(rows, "picky")
    assert found.training["text"][:] == ["ONE", None, None, "TWO"]
    assert found.training["unit"][:] == ["m1", "m1", "m2", "m3"]
    assert (
        "2 of 4 rows, which contribute nothing (ValueError: 1, TypeError: 1): 2, 3" in caplog.text
    )
    assert SECRET not in caplog.text + "".join(capfd.readouterr())
    assert own(rows, "panics").training["text"][:] == [None] * 4


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    before=st.lists(st.sampled_from(["x", SECRET, "nothing", ""]), max_size=4),
    after=st.lists(st.sampled_from(["y", SECRET]), max_size=3),
)
def test_other_records_change_nothing(own: Own, before: list[str], after: list[str]) -> None:
    rows = [row(i, text) for i, text in enumerate([*before, "mine", *after])]
    found = own(rows, "picky").training
    assert len(found) == len(rows)
    assert found[len(before)] == {"text": "MINE", "unit": f"m{len(before)}"}


def test_who_is_held_out_and_known_does_not_depend_on_chance(own: Own) -> None:
    """Or a record that nobody was to train on would be trained on after the next start."""
    rows = [row(i, f"note {i}") for i in range(60)]
    once, again = (own(rows, "by_chance", 0.3, unit="record") for _ in range(2))
    assert once.training["text"][:] != again.training["text"][:]
    assert list(once.rows) == list(again.rows)
    plain = own(rows, None, 0.3, unit="record")
    for found in (once, again, plain):
        assert list(found.as_read[0]) == list(plain.training)
        assert list(found.as_read[1]) == list(plain.held_out)
        for made, read in zip(found.held_out, plain.held_out, strict=True):
            assert made["text"].startswith(read["text"])


def test_rows_in_the_log_are_those_of_the_file(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    rows = [row(i, f"singer {i}") for i in range(1, 10)]
    found = own(rows, "picky", 0.4, unit="record")
    trained, apart = (set(map(int, m.rpartition(": ")[2].split(", "))) for m in caplog.messages)
    assert trained == set(found.rows) and trained | apart == set(range(1, 10))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scrubbing:none", r"data.transform: there is no such function.*'scrubbing:none'"),
        ("scrubbing:not_a_function", "there is no such function"),
        ("nowhere.at.all:x", r"can't be imported \(ModuleNotFoundError\).*PYTHONPATH"),
    ],
)
def test_errors_name_what_to_do(name: str, said: str, own: Own) -> None:
    with pytest.raises(DataError, match=said):
        find_transform(name, "data.transform")


def test_one_that_remembers_is_told_from_one_that_does_not(own: Own) -> None:
    def answer(name: str) -> bool:
        return remembers(find_transform(f"scrubbing:{name}", "data.transform"))

    assert not answer("upper")
    assert answer("in_order") and answer("by_chance")
