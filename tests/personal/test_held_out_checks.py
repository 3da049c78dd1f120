"""Held-out records that were trained on, or that are of another data set, judge no model."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import fedpriv
from fedpriv.data.encode import Example
from fedpriv.errors import DataError
from fedpriv.personal.held_out_checks import FEWEST, LIKE, check_held_out, likeness

CLINICS = Path(fedpriv.__file__).parent / "assets" / "clinics"
KEY = "sites.a.held_out"


class Words:
    """A tokenizer of a token a word."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def example(self, text: str) -> Example:
        for word in text.split(" "):
            if word not in self.words:
                self.words.append(word)
        ids = [self.words.index(word) for word in text.split(" ")]
        return Example(ids, ids)

    def decode(self, ids: list[int]) -> str:
        return " ".join(self.words[i] for i in ids)


def check(training: list[str], held_out: list[str]) -> None:
    words: Any = Words()
    sides = [[words.example(text) for text in side] for side in (training, held_out)]
    check_held_out(*sides, words, key=KEY)


def made_up(words: str, count: int, seed: int) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(words.split(), k=9)) for _ in range(count)]


ENGLISH = "the patient was seen for pain in left knee and has no fever today with a normal exam"
GERMAN = "der patient kam wegen schmerzen im linken knie und hat heute kein fieber bei befund"


def test_records_of_another_language_are_refused() -> None:
    check(made_up(ENGLISH, 16, 0), made_up(ENGLISH, 8, 1))
    with pytest.raises(DataError, match="read as another data set's") as caught:
        check(made_up(ENGLISH, 16, 0), made_up(GERMAN, 8, 1))
    assert caught.value.key == KEY and "language" in caught.value.fix


def test_of_a_handful_of_records_nothing_is_told() -> None:
    check(made_up(ENGLISH, 16, 0), made_up(GERMAN, FEWEST - 1, 1))


@pytest.mark.parametrize("copies", [8, 1])
def test_copies_of_records_that_train_are_refused(copies: int) -> None:
    """Also where white space and case differ."""
    training = made_up(ENGLISH, 16, 0)
    copied = [text.upper().replace(" ", "  ") for text in training[:copies]]
    with pytest.raises(DataError, match=f"{copies} of 8 held-out records are copies") as caught:
        check(training, [*copied, *made_up(ENGLISH, 8 - copies, 1)])
    assert caught.value.key == KEY
    assert training[0] not in str(caught.value)


def test_texts_that_repeat_everywhere_are_no_copies() -> None:
    """Of notes that are written from a form, one in two is the same at both sides."""
    drawn = random.Random(3)
    forms = ["no acute distress", "normal study", "unchanged"]
    texts = [drawn.choice(forms) for _ in range(12)] + made_up(ENGLISH, 12, 0)
    drawn.shuffle(texts)
    check(texts[:16], texts[16:])


def notes(name: str) -> list[set[str]]:
    with gzip.open(CLINICS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return [set(json.loads(line)["transcription"].lower().split()[:60]) for line in stream]


@pytest.mark.parametrize("clinic", ["surgery-1", "radiology-4", "soap-3", "consult-1"])
def test_a_clinics_own_further_notes_are_like_its_notes(clinic: str) -> None:
    place: dict[str, int] = {}
    sides = [
        [{place.setdefault(word, len(place)) for word in note} for note in notes(name)]
        for name in (clinic, f"{clinic}-held-out")
    ]
    alike, _ = likeness(*sides)
    assert alike > LIKE + 0.1
