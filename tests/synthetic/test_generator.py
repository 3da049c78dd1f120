"""What is taken of a generator that makes little, and how a set grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fedpriv.errors import RoundError
from fedpriv.synthetic.config import GeneratorSection, SyntheticSection
from fedpriv.synthetic.evolution import _grown, first_set
from fedpriv.synthetic.generator import ATTEMPTS, new_records
from fedpriv.synthetic.records import MAX_TEXT, Record, SyntheticSet


def text(*texts: Any) -> list[Record]:
    return [{"text": one} for one in texts]


BAD = ["", "   \n", None, 3, "x" * (MAX_TEXT + 1), "half \ud800 a pair", "nul \x00", "known"]


def test_only_usable_new_ones_are_taken() -> None:
    answers = [text(*BAD, "a"), text("a", "b"), text("b", "c", "d")]
    asked: list[int] = []

    def make(count: int, attempt: int) -> list[Record]:
        asked.append(count)
        return answers[attempt]

    assert new_records(3, text("known"), make) == text("a", "b", "c")
    assert asked == [3, 2, 1]


@pytest.mark.parametrize("bad", BAD)
def test_a_generator_of_nothing_is_given_up(bad: Any) -> None:
    calls: list[int] = []

    def make(count: int, attempt: int) -> list[Record]:
        calls.append(attempt)
        return text(bad) * count

    with pytest.raises(RoundError, match="0 usable new records of 2"):
        new_records(2, text("known"), make)
    assert calls == list(range(ATTEMPTS))


def test_an_empty_prompt_is_usable_and_an_empty_completion_is_not() -> None:
    found = [{"prompt": "", "completion": "a"}, {"prompt": "p", "completion": ""}]
    with pytest.raises(RoundError, match="1 usable"):
        new_records(2, [], lambda count, attempt: list(found))


class Counting:
    """Numbers what it makes."""

    def __init__(self) -> None:
        self.parents: list[str] = []

    def random(self, count: int, seed: str) -> list[Record]:
        return text(*(f"random {i}" for i in range(count)))

    def variations(self, records: Sequence[Record], seed: str) -> list[Record]:
        self.parents += [record["text"] for record in records]
        return text(*(f"{record['text']}'{i}" for i, record in enumerate(records)))


def test_seeds_stay_where_they_are_and_the_others_are_variations() -> None:
    before, maker = SyntheticSet(text("a", "b", "c", "d", "e", "f")), Counting()
    after = _grown(maker, "1", before, (1, 4))
    assert [after.records[place] for place in (1, 4)] == text("b", "e")
    assert maker.parents == ["b", "e", "b", "e"]
    assert len({record["text"] for record in after.records}) == 6


def test_the_first_set_is_what_is_given_and_then_the_generators() -> None:
    settings = SyntheticSection(size=4, generator=GeneratorSection())
    found = first_set(settings, text("a", "b"), Counting(), 0)
    assert [one["text"] for one in found.records] == ["a", "b", "random 0", "random 1"]
    assert len(first_set(settings, text(*"abcdef"), None, 0)) == 4


def test_a_set_does_not_outgrow_what_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedpriv.synthetic.generator.MAX_SET", 10)
    assert len(new_records(2, text("abcd"), lambda n, _: text("123", "456"))) == 2
    with pytest.raises(RoundError, match="1 usable"):
        new_records(2, text("abcd"), lambda n, _: text("123", "4567"))
