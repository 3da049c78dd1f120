"""What a model makes of prompts, and ROUGE as it is defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.encode import encode_completion
from fedpriv.personal.generation import completions, references, rouge

Make = Callable[..., Any]
words = st.lists(st.sampled_from(["fever", "cough", "pain", "no", "the"]), min_size=1, max_size=8)


def by_definition(made: Sequence[str], expected: Sequence[str], n: int) -> float:
    """ROUGE-N's F-measure."""
    runs = [
        Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
        for text in (made, expected)
    ]
    common = (runs[0] & runs[1]).total()
    if not common:
        return 0.0
    precision, recall = common / runs[0].total(), common / runs[1].total()
    return 2 * precision * recall / (precision + recall)


def longest_common(a: Sequence[str], b: Sequence[str]) -> int:
    best = np.zeros((len(a) + 1, len(b) + 1), int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best[i + 1, j + 1] = best[i, j] + 1 if x == y else max(best[i, j + 1], best[i + 1, j])
    return int(best[-1, -1])


@given(st.lists(st.tuples(words, words), min_size=1, max_size=4))
def test_rouge_is_what_it_is_defined_as(pairs: list[tuple[list[str], list[str]]]) -> None:
    made, expected = ([" ".join(pair[k]) for pair in pairs] for k in (0, 1))
    found = rouge(made, expected)
    for n, value in ((1, found.rouge_1), (2, found.rouge_2)):
        mean = sum(by_definition(a, b, n) for a, b in pairs) / len(pairs)
        assert value == pytest.approx(mean, abs=1e-6)
    lcs = [2 * longest_common(a, b) / (len(a) + len(b)) for a, b in pairs]
    assert found.rouge_l == pytest.approx(sum(lcs) / len(lcs), abs=1e-6)


@pytest.mark.parametrize(
    ("made", "expected", "same"),
    [
        ("Fever, and COUGH.", "fever and cough", 1.0),
        ("Übelkeit; Fieber 39,5", "übelkeit fieber 39 5", 1.0),
        ("обострение астмы", "Обострение астмы", 1.0),
        ("", "fever", 0.0),
        ("fever", "", 0.0),
        ("...", "???", 0.0),
    ],
)
def test_words_of_any_language_count_and_nothing_else(
    made: str, expected: str, same: float
) -> None:
    assert rouge([made], [expected]).rouge_1 == pytest.approx(same)


def test_a_completion_does_not_depend_on_who_is_beside_it(make_worker: Make) -> None:
    """Prompts of several lengths are padded on the left."""
    worker = make_worker("llama")
    tokenizer = worker.base.tokenizer
    pairs = [("a", "fever"), ("a longer prompt", "cough"), ("mid", "pain")]
    found = [encode_completion(*pair, tokenizer, 32)[0] for pair in pairs]
    together = completions(worker, found, worker.initial)
    for example, text in zip(found, together, strict=True):
        [alone] = completions(worker, [example], worker.initial)
        assert alone.startswith(text) or text.startswith(alone)
        assert text
    assert references(worker, found) == ["fever", "cough", "pain"]


def test_other_values_complete_otherwise(make_worker: Make) -> None:
    worker = make_worker("llama")
    [example] = encode_completion("fever", "cough", worker.base.tokenizer, 32)
    moved = worker.initial + np.float32(0.5)
    [base], [other] = (completions(worker, [example], v) for v in (worker.initial, moved))
    assert base != other
