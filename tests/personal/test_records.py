"""A site's own examples: each unit on one side, no more of it than it may have."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.personal import MANY, PersonalSection
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError
from fedpriv.personal.records import OwnParts, own_examples, to_train_on

people = st.lists(st.integers(0, 5).map(str), max_size=24)


class Letters:
    """A tokenizer of a token a letter."""

    eos_token_id = None
    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def num_special_tokens_to_add(self) -> int:
        return 0


def made(units: list[str], most: int, unit: str = "patient", parts: int = 2) -> list[list[str]]:
    """The owners of the examples of each part; a record's text is its owner and its number."""
    rows = [{"text": f"{owner}{n:02}", UNIT: owner} for n, owner in enumerate(units)]
    spec = DataSpec({"text": "note"}, "causal-lm", (), 16, unit, most)
    tokenizer: Any = Letters()
    found = own_examples(rows, spec, tokenizer, parts=parts)
    return [["".join(map(chr, one.input_ids)) for one in part] for part in found]


@given(people, st.integers(1, 4), st.integers(1, 5))
def test_all_of_a_person_is_in_one_part_and_the_first_records_count(
    units: list[str], most: int, parts: int
) -> None:
    found = made(units, most, parts=parts)
    owners = [{text[0] for text in part} for part in found]
    assert sum(map(len, owners)) == len(set().union(*owners))
    held = Counter(text[0] for part in found for text in part)
    assert held == {owner: min(count, most) for owner, count in Counter(units).items()}
    for owner in held:
        numbers = [n for n, one in enumerate(units) if one == owner][:most]
        texts = [t for part in found for t in part if t[0] == owner]
        assert texts == [f"{owner}{n:02}" for n in numbers]


@given(people, st.integers(1, 5))
def test_parts_have_about_as_many_people_and_the_same_ones_each_time(
    units: list[str], parts: int
) -> None:
    found = made(units, 1, parts=parts)
    sizes = [len(part) for part in found]
    assert max(sizes) - min(sizes) <= 1
    shuffled = sorted(units)
    owners = [{text[0] for text in part} for part in found]
    assert owners == [{text[0] for text in part} for part in made(shuffled, 1, parts=parts)]


@given(st.lists(st.just("1"), max_size=12))
def test_where_each_record_is_a_unit_all_count(units: list[str]) -> None:
    assert sum(map(len, made(units, 1, unit="record"))) == len(units)


@given(st.integers(2, 30), st.integers(0, 30), st.integers(2, 5))
def test_parts_have_about_the_same_share_of_each_label(no: int, yes: int, parts: int) -> None:
    """Else what is left out has more of a label just where training had less of it."""
    labels = ["no"] * no + ["yes"] * yes
    rows = [{"text": f"{n:03}", "label": label} for n, label in enumerate(labels)]
    spec = DataSpec(
        {"text": "note", "label": "l"}, "classification", ("no", "yes"), 16, "record", 1
    )
    tokenizer: Any = Letters()
    found = own_examples(rows, spec, tokenizer, parts=parts)
    for label in (0, 1):
        counts = [sum(one.labels == label for one in part) for part in found]
        assert max(counts) - min(counts) <= 1


def parts_of(count: int, settings: PersonalSection) -> OwnParts:
    """Of so many people with two records each."""
    rows = [{"text": f"{n:03}", UNIT: str(n // 2)} for n in range(2 * count)]
    own: Any = SimpleNamespace(training=rows)
    spec = DataSpec({"text": "note"}, "causal-lm", (), 16, "patient", 2)
    tokenizer: Any = Letters()
    return to_train_on(own, spec, tokenizer, settings)


@pytest.mark.parametrize(("count", "left_out"), [(2, 2), (3, 3), (16, 4), (MANY - 1, 4), (MANY, 1)])
def test_each_part_is_left_out_and_of_many_people_one(count: int, left_out: int) -> None:
    found = parts_of(count, PersonalSection())
    assert found.left_out == left_out
    assert len(found.everything) == 2 * count
    assert len(found.parts) == min(count, 4)
    for index, part in enumerate(found.parts):
        assert len(found.without(index)) == 2 * count - len(part)


def test_where_nothing_is_chosen_nothing_is_left_out() -> None:
    found = parts_of(16, PersonalSection(validation=0, rates=(1e-3,), epochs=2))
    assert (len(found.parts), found.left_out) == (1, 0)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_people_to_leave_one_out_are_told(count: int) -> None:
    with pytest.raises(DataError, match=r"personal\.validation.*in \d of 4 parts") as caught:
        parts_of(count, PersonalSection())
    assert "validation = 0" in caught.value.fix
