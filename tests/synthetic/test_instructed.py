"""What is asked of a model that follows instructions, and what becomes of its answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from fedpriv.errors import RoundError
from fedpriv.synthetic.instructed import TONES, InstructedGenerator


class Echo:
    """Answers with a number; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, instructions: Sequence[str], seed: str) -> list[str]:
        self.asked += instructions
        return [f" answer {i} \n" for i in range(len(instructions))]


def made(echo: Echo, *fields: str, labels: Sequence[str] = ()) -> InstructedGenerator:
    return InstructedGenerator(echo, "a discharge letter", fields, labels)


def test_records_are_asked_for_in_many_tones() -> None:
    echo = Echo()
    found = made(echo, "text").random(40, "s")
    assert found[3] == {"text": "answer 3"}
    tones = {tone for tone in TONES for one in echo.asked if one.endswith(f"{tone}. Answer with its text alone.")}  # fmt: skip # noqa: E501
    assert len(tones) > 5
    assert all("a discharge letter" in one for one in echo.asked)


def test_the_same_seed_asks_the_same() -> None:
    first, second, third = Echo(), Echo(), Echo()
    for echo, seed in ((first, "a"), (second, "a"), (third, "b")):
        made(echo, "text").random(20, seed)
    assert first.asked == second.asked != third.asked


def test_labels_are_drawn_equally_often() -> None:
    echo = Echo()
    found = made(echo, "text", "label", labels=("yes", "no")).random(400, "s")
    counts = Counter(record["label"] for record in found)
    assert set(counts) == {"yes", "no"}
    assert 150 < counts["yes"] < 250
    for record, asked in zip(found, echo.asked, strict=True):
        assert f"labelled {record['label']!r}" in asked


def test_a_variation_shows_its_seed_and_keeps_label_and_prompt() -> None:
    echo = Echo()
    [labelled] = made(echo, "text", "label", labels=("yes",)).variations(
        [{"text": "old words", "label": "yes"}], "s"
    )
    assert labelled == {"text": "answer 0", "label": "yes"}
    assert "old words" in echo.asked[0] and "labelled 'yes'" in echo.asked[0]
    [completed] = made(echo, "prompt", "completion").variations(
        [{"prompt": "a question", "completion": "old words"}], "s"
    )
    assert completed == {"prompt": "a question", "completion": "answer 0"}
    assert "a question" in echo.asked[1] and "old words" in echo.asked[1]


def test_prompts_are_not_made_up() -> None:
    with pytest.raises(RoundError, match=r"set synthetic\.generator\.prompt"):
        made(Echo(), "prompt", "completion").random(1, "s")


def test_one_prompt_may_be_that_of_all() -> None:
    echo = Echo()
    maker = InstructedGenerator(echo, "an abstract", ("prompt", "completion"), {}, "Write one.")
    assert maker.random(2, "s") == [
        {"prompt": "Write one.", "completion": f"answer {i}"} for i in range(2)
    ]
    assert all(one.startswith("Write one.\n\nWrite an abstract, ") for one in echo.asked)
