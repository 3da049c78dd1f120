"""Units: nobody's examples depend on anybody else's rows."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpriv.data import population as units
from fedpriv.data.encode import Cause, Example, encode_record
from fedpriv.data.population import (
    Population,
    Tally,
    encode_population,
    read_labelled,
    tally_records,
)
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile, UnitStore
from fedpriv.errors import DataError

Make = Callable[..., Any]
HERE = Path(tempfile.gettempdir())  # of files without a name
SPEC = DataSpec({"text": "note"}, "causal-lm", (), 8, "record", 2)
BY_PATIENT = dataclasses.replace(SPEC, unit="patient")


def load(rows: list[dict[str, Any]], folder: Path, spec: DataSpec, tokenizer: Any) -> Population:
    path = folder / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = read_labelled(
        path,
        spec,
        cache_dir=folder / "cache",
        key="sites.a.data",
    )
    return encode_population(records, spec, tokenizer, TokenFile(folder / "cache"))


def _empty_rows(population: Population) -> tuple[int, ...]:
    return tuple(sorted(row for rows in population.tally.empty.values() for row in rows))


def by_owner(rows: list[dict[str, Any]], population: Population) -> dict[str, tuple[Example, ...]]:
    owners = list(dict.fromkeys(str(row["patient"]) for row in rows))
    assert len(owners) == len(population)
    return dict(zip(owners, population.units, strict=True))


ROWS = st.lists(
    st.fixed_dictionaries(
        {"patient": st.integers(0, 3), "note": st.one_of(st.none(), st.text("ab 1.é", max_size=30))}
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.data())
def test_dropping_a_patient_or_shuffling_changes_nobody_else(
    tmp_path_factory: pytest.TempPathFactory,
    make_tokenizer: Make,
    rows: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("units")
    everyone = by_owner(rows, load(rows, folder, BY_PATIENT, make_tokenizer()))
    assert all(len(unit) <= BY_PATIENT.max_records_per_unit for unit in everyone.values())

    gone = data.draw(st.sampled_from(rows))["patient"]
    # A stable sort by a drawn order of patients: each one's own rows stay in order.
    order = data.draw(st.permutations(range(4)))
    others = sorted(
        (row for row in rows if row["patient"] != gone), key=lambda row: order[row["patient"]]
    )
    if others:
        remaining = by_owner(others, load(others, folder, BY_PATIENT, make_tokenizer()))
        assert remaining == {k: unit for k, unit in everyone.items() if k != str(gone)}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ROWS, st.data())
def test_a_record_as_a_unit_is_its_own(
    tmp_path_factory: pytest.TempPathFactory,
    make_tokenizer: Make,
    rows: list[dict[str, Any]],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("records")
    population = load(rows, folder, SPEC, make_tokenizer())
    assert len(population) == len(rows)
    assert _empty_rows(population) == tuple(
        row for row, unit in enumerate(population.units, 1) if not unit
    )
    shuffled = data.draw(st.permutations(range(len(rows))))
    again = load([rows[i] for i in shuffled], folder, SPEC, make_tokenizer())
    assert list(again.units) == [population.units[i] for i in shuffled]


NOTES = st.one_of(st.none(), st.text("ab 1.é", max_size=40))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    others=st.lists(st.tuples(st.integers(0, 3), NOTES), max_size=8),
    own=st.lists(st.tuples(st.integers(0, 8), NOTES), min_size=1, max_size=4),
    by_patient=st.booleans(),
    cap=st.integers(1, 3),
)
def test_adding_one_unit_adds_exactly_one_entry(
    make_tokenizer: Make,
    others: list[tuple[int, str | None]],
    own: list[tuple[int, str | None]],
    by_patient: bool,
    cap: int,
) -> None:
    """Wherever its rows stand among those of others; and again at the next job or restart."""
    spec = dataclasses.replace(
        SPEC, unit="patient" if by_patient else "record", max_records_per_unit=cap
    )
    before = [{"unit": str(who), "text": note} for who, note in others]
    fresh = [(at, {"unit": "new", "text": note}) for at, note in own]
    after = list(before)
    for at, row in sorted(fresh if by_patient else fresh[:1], key=lambda pair: -pair[0]):
        after.insert(at, row)

    without = encode_population(before, spec, make_tokenizer(), TokenFile(HERE))
    population = encode_population(after, spec, make_tokenizer(), TokenFile(HERE))
    added = list(population.units)
    for unit in without.units:
        added.remove(unit)
    assert len(added) == 1
    assert all(len(unit) <= cap for unit in population.units)
    again = encode_population(after, spec, make_tokenizer(), TokenFile(HERE))
    assert list(again.units) == list(population.units)

    fresh_ones = [row for row in after if row["unit"] == "new"]
    alone = encode_population(fresh_ones, spec, make_tokenizer(), TokenFile(HERE))
    assert list(alone.units) == added


def test_a_long_text_is_windows_of_one_unit(make_tokenizer: Make) -> None:
    rows = [{"text": "a" * 100}, {"text": "b"}]
    population = encode_population(rows, SPEC, make_tokenizer(), TokenFile(HERE))
    assert [[len(e.input_ids) for e in unit] for unit in population.units] == [[8, 8], [2]]


class Panic(BaseException):
    """What a tokenizer in Rust raises when it panics is no Exception."""


@pytest.mark.parametrize("error", [ValueError, Panic])
def test_a_record_that_can_not_be_encoded_costs_nobody_else(
    make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def encode(record: dict[str, Any], *args: Any, **more: Any) -> list[Example]:
        if record["text"] == "bad":
            raise error("Mrs Miller")
        return encode_record(record, *args, **more)

    monkeypatch.setattr(units, "encode_record", encode)
    rows = [{"text": "a"}, {"text": "bad"}, {"text": "b"}]
    population = encode_population(rows, SPEC, make_tokenizer(), TokenFile(HERE))
    assert [len(unit) for unit in population.units] == [1, 0, 1]
    assert population.tally.empty == {Cause.FAILED: [2]}


def test_a_record_that_has_no_room_costs_nobody_else(
    make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server chooses how long an example is: a refusal would tell how long the records are."""
    append = UnitStore.append

    def full(store: UnitStore, place: int, example: Example) -> None:
        if len(example.input_ids) > 3:
            raise OSError(28, "No space left on device")
        append(store, place, example)

    monkeypatch.setattr(UnitStore, "append", full)
    rows = [{"text": "a"}, {"text": "long"}, {"text": "longer"}, {"text": "b"}]
    population = encode_population(rows, SPEC, make_tokenizer(), TokenFile(HERE))
    assert [len(unit) for unit in population.units] == [1, 0, 0, 1]
    assert population.tally.empty == {Cause.DISK: [2, 3]}
    assert [r.message for r in caplog.records] == [
        "Records were left out, as they could not be kept: No space left on device."
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_who_wants_to_end_the_process_does(
    make_tokenizer: Make, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def encode(*args: Any, **more: Any) -> list[Example]:
        raise error

    monkeypatch.setattr(units, "encode_record", encode)
    with pytest.raises(error):
        encode_population([{"text": "a"}], SPEC, make_tokenizer(), TokenFile(HERE))


def test_the_first_examples_of_a_unit_are_kept(tmp_path: Path, make_tokenizer: Make) -> None:
    tokenizer = make_tokenizer(eos=False)
    rows = [
        {"patient": 1, "note": "a" * 8},
        {"patient": 2, "note": "b" * 40},
        {"patient": " 1", "note": ""},
        {"patient": 1.0, "note": "c" * 16},
    ]
    population = load(rows, tmp_path, BY_PATIENT, tokenizer)
    texts = [[tokenizer.decode(e.input_ids) for e in unit] for unit in population.units]
    assert texts == [["a" * 8, "c" * 8], ["b" * 8, "b" * 8]]
    assert population.tally.empty == {Cause.EMPTY: [3]}


def test_a_unit_without_tokens_stays(tmp_path: Path, make_tokenizer: Make) -> None:
    rows = [{"patient": 1, "note": None}, {"patient": 2, "note": "ab"}]
    population = load(rows, tmp_path, BY_PATIENT, make_tokenizer())
    assert [len(unit) for unit in population.units] == [0, 1]


def test_an_undeclared_label_names_its_row(tmp_path: Path, make_tokenizer: Make) -> None:
    columns = {"text": "note", "label": "class"}
    spec = DataSpec(columns, "classification", ("0", "1"), 8, "record", 1)
    rows = [{"note": "a", "class": 0}, {"note": "b", "class": 2}]
    with pytest.raises(DataError, match="row 2"):
        load(rows, tmp_path, spec, make_tokenizer())
    population = load(rows[:1], tmp_path, spec, make_tokenizer())
    assert [example.labels for unit in population.units for example in unit] == [0]


def test_what_gives_no_example_is_told_with_its_cause(make_tokenizer: Make) -> None:
    columns = {"text": "note", "label": "class"}
    spec = DataSpec(columns, "classification", ("no", "yes"), 8, "record", 1)
    texts = ["secret", "", "secret", None, "secret"]
    labels = ["no", "yes", "maybe", "no", None]
    rows = [{"text": t, "label": label} for t, label in zip(texts, labels, strict=True)]
    found = tally_records(rows, spec, make_tokenizer(), rows=range(11, 16))
    stored = encode_population(rows, spec, make_tokenizer(), TokenFile(HERE), rows=range(11, 16))
    assert found == stored.tally
    assert found.empty == {Cause.LABEL: [13, 15], Cause.EMPTY: [12, 14]}
    assert "4 of 5 records give no example" in found.told
    assert "2: the text is empty (rows 12, 14)" in found.told
    assert "secret" not in found.told
    with pytest.raises(DataError) as caught:
        found.check(0.5, key="records", limit="max_empty")
    assert caught.value.key == "records" and "max_empty (now 0.5)" in caught.value.fix
    assert Cause.EMPTY.fix in caught.value.fix


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
def test_too_many_records_without_an_example_are_refused(
    empty: int, others: int, most: float
) -> None:
    found = Tally({Cause.EMPTY: list(range(empty))} if empty else {}, empty + others)
    expected = bool(empty) and (not others or empty / (empty + others) > most)
    assert found.is_whole is (not empty)
    if not expected:
        found.check(most, key="k", limit="l")
        return
    with pytest.raises(DataError, match=f"{empty} of {empty + others} records"):
        found.check(most, key="k", limit="l")


def test_conversations_that_are_cut_are_counted(make_tokenizer: Make) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    spec = dataclasses.replace(SPEC, columns={"messages": "talk"})
    tokenizer = make_tokenizer(chat_template=template)
    turns = [("ab", "c"), ("a" * 9, "c"), ("a" * 6, "c"), ("a", "c" * 20)]
    rows = [
        {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": other}]}
        for one, other in turns
    ]
    found = tally_records(rows, spec, tokenizer)
    assert (found.cut, found.records, found.without) == (2, 4, 0) and not found.is_whole
    assert "2 of 4 records are cut at max_length = 8 or max_records_per_unit" in found.told
    pairs = dataclasses.replace(SPEC, columns={"prompt": "p", "completion": "c"})
    rows = [{"prompt": one, "completion": other} for one, other in turns]
    assert tally_records(rows, pairs, tokenizer).cut == 2
    texts = [{"text": one + other} for one, other in turns]  # which are windows
    for most in (1, 2, 3):
        windows = dataclasses.replace(SPEC, max_records_per_unit=most)
        assert tally_records(texts, windows, tokenizer).cut == 3 - most


def test_texts_of_a_classifier_that_are_cut_are_counted(make_tokenizer: Make) -> None:
    spec = DataSpec({"text": "n", "label": "c"}, "classification", ("no", "yes"), 8, "record", 4)
    for adds in (("", ""), ("<bos>", "<eos>")):
        tokenizer = make_tokenizer(adds=adds)
        room = 8 - tokenizer.num_special_tokens_to_add()
        texts = ["a" * (room - 1), "a" * room, "a" * (room + 1), "a" * 99, ""]
        found = tally_records([{"text": t, "label": "no"} for t in texts], spec, tokenizer)
        assert (found.cut, found.records, found.without) == (2, 5, 1)


def test_records_beyond_those_of_a_unit_are_counted(tmp_path: Path, make_tokenizer: Make) -> None:
    spec = dataclasses.replace(BY_PATIENT, max_records_per_unit=2)
    notes = {"p": ["a" * 7, "b" * 7, "", "c" * 7], "q": ["a" * 20], "r": ["a", "b" * 12]}
    rows = [{"patient": owner, "note": note} for owner in notes for note in notes[owner]]
    tally = load(rows, tmp_path, spec, make_tokenizer()).tally
    assert (tally.cut, tally.records, tally.without) == (3, 7, 1)
    assert "3 of 7 records are cut at max_length = 8 or max_records_per_unit" in tally.told


def test_no_chat_template_is_refused_before_records_are_read(
    tmp_path: Path, make_tokenizer: Make
) -> None:
    def unread() -> Iterator[dict[str, Any]]:
        pytest.fail("read")
        yield {}

    spec = dataclasses.replace(SPEC, columns={"messages": "talk"})
    with pytest.raises(DataError, match="chat template"):
        encode_population(unread(), spec, make_tokenizer(), TokenFile(tmp_path))


MEMORY = """
import gc, sys, tracemalloc
from pathlib import Path
from fedpriv.data import population
from fedpriv.data.encode import Example
from fedpriv.data.population import encode_population
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile

folder, unit, count = Path(sys.argv[1]), sys.argv[2], 6_000
spec = DataSpec({"text": "note"}, "causal-lm", (), 8, unit, 100)
rows = ({"text": "x", "unit": f"p{number // 100}"} for number in range(count))
file = TokenFile(folder)
population.encode_record = lambda *_, **__: [Example([5, 6, 7, 8], [-100, 6, 7, 8])]
gc.collect()
tracemalloc.start()
found = encode_population(rows, spec, None, file)
gc.collect()
print(len(found), found.units[-1][-1].input_ids, *tracemalloc.get_traced_memory(), sep="\\t")
"""


@pytest.mark.parametrize("unit", ["record", "patient"])
def test_records_take_no_memory(tmp_path: Path, unit: str) -> None:
    """Each unit takes 8 bytes. While they are read, the id of each patient does, too.

    In a process of its own, because what other tests left running takes memory, too.
    """
    command = [sys.executable, "-c", MEMORY, str(tmp_path), unit]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\t")
    assert found[:2] == ["6000" if unit == "record" else "60", "[5, 6, 7, 8]"]
    held, most = map(int, found[2:])
    assert held < 12_000 + 9 * int(found[0])
    assert most < 60_000 + 9 * int(found[0])
