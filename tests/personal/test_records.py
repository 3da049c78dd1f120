"""A site's own examples: each unit on one side, no more of it than it may have."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.personal import FEW, PersonalSection
from fedpriv.data.held_out import VALIDATION, is_apart
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec
from fedpriv.personal.records import LEAST, own_examples, to_train_on

SHARE = 0.4
people = st.lists(st.integers(0, 5).map(str), max_size=24)


class Letters:
    """A tokenizer of a token a letter."""

    eos_token_id = None
    chat_template = None

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def num_special_tokens_to_add(self) -> int:
        return 0


def made(units: list[str], most: int, unit: str = "patient") -> tuple[list[str], list[str]]:
    """The owners of the examples of each side; a record's text is its owner and its number."""
    rows = [{"text": f"{owner}{n:02}", UNIT: owner} for n, owner in enumerate(units)]
    spec = DataSpec({"text": "note"}, "causal-lm", (), 16, unit, most)
    tokenizer: Any = Letters()
    sides = own_examples(rows, spec, tokenizer, apart=SHARE)
    texts = [["".join(map(chr, one.input_ids)) for one in side] for side in sides]
    return texts[0], texts[1]


@given(people, st.integers(1, 4))
def test_all_of_a_person_is_on_one_side_and_the_first_records_count(
    units: list[str], most: int
) -> None:
    training, validation = made(units, most)
    assert not {text[0] for text in training} & {text[0] for text in validation}
    held = Counter(text[0] for text in (*training, *validation))
    assert held == {owner: min(count, most) for owner, count in Counter(units).items()}
    for owner in held:
        numbers = [n for n, one in enumerate(units) if one == owner][:most]
        assert [t for t in (*training, *validation) if t[0] == owner] == [
            f"{owner}{n:02}" for n in numbers
        ]


@given(people)
def test_each_person_is_drawn_alone_but_where_too_few_would_be_on_a_side(units: list[str]) -> None:
    sides = made(units, 1)
    training, validation = ({text[0] for text in side} for side in sides)
    drawn = {o for o in units if is_apart({UNIT: o}, "patient", SHARE, VALIDATION)}
    least = min(LEAST, len(set(units)) // 2)
    if least <= len(drawn) <= len(set(units)) - least:
        assert validation == drawn
    else:
        assert min(len(training), len(validation)) == least
        assert validation <= drawn or drawn <= validation


def test_one_person_alone_is_left_to_the_draw() -> None:
    assert sum(map(len, made(["3"], 1))) == 1


@given(st.lists(st.just("1"), max_size=12))
def test_where_each_record_is_a_unit_all_count(units: list[str]) -> None:
    training, validation = made(units, 1, unit="record")
    assert len(training) + len(validation) == len(units)


@pytest.mark.parametrize(("count", "stops"), [(FEW - 1, False), (FEW, True)])
def test_a_site_of_few_people_learns_from_all_whatever_their_records(
    count: int, stops: bool
) -> None:
    rows = [{"text": f"{n:03}", UNIT: str(n // 2)} for n in range(2 * count)]
    own: Any = SimpleNamespace(training=rows)
    spec = DataSpec({"text": "note"}, "causal-lm", (), 16, "patient", 2)
    tokenizer: Any = Letters()
    training, validation = to_train_on(own, spec, tokenizer, PersonalSection())
    assert len(training) + len(validation) == 2 * count
    assert bool(validation) == stops
