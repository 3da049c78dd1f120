"""ROUGE as it is defined."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from unicodedata import category, normalize

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fedpriv.plain_training.rouge import _words, rouge

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


@given(st.lists(st.tuples(words, st.lists(words, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_rouge_is_what_it_is_defined_as(pairs: list[tuple[list[str], list[list[str]]]]) -> None:
    made = [" ".join(pair[0]) for pair in pairs]
    found = rouge(made, [[" ".join(one) for one in pair[1]] for pair in pairs])
    for n, value in ((1, found.rouge_1), (2, found.rouge_2)):
        mean = sum(max(by_definition(a, b, n) for b in bs) for a, bs in pairs) / len(pairs)
        assert value == pytest.approx(mean, abs=1e-6)
    lcs = [max(2 * longest_common(a, b) / (len(a) + len(b)) for b in bs) for a, bs in pairs]
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
    assert rouge([made], [[expected]]).rouge_1 == pytest.approx(same)


@pytest.mark.parametrize(
    ("made", "expected", "one", "longest"),
    [
        ("मरीज़ को दिल की बीमारी है", "मरीज़ का दाल के बीमारा हो", 1 / 6, 1 / 6),  # vowel signs
        ("مريضٌ", "مريضُ", 0.0, 0.0),
        ("病人没有发烧", "病人没有咳嗽发烧", 12 / 14, 12 / 14),
        ("病人用CT检查。", "病人的CT检查", 10 / 12, 10 / 12),  # CT is one word
        ("発熱なし", "発熱あり", 0.5, 0.5),
        ("ไม่มีไข้", "มีไข้", 10 / 13, 10 / 13),
        ("ជំងឺ", "ជំងា", 6 / 8, 6 / 8),
        ("fie\u0300vre", "fi\u00e8vre", 1.0, 1.0),  # the same letter, written in two ways
        ("\u2764\ufe0f", "\u2764\ufe0f", 0.0, 0.0),  # a mark on no letter is no word
    ],
)
def test_marks_belong_to_words_and_characters_count_without_spaces(
    made: str, expected: str, one: float, longest: float
) -> None:
    found = rouge([made], [[expected]])
    assert (found.rouge_1, found.rouge_l) == pytest.approx((one, longest))


@given(st.text(st.characters(max_codepoint=0x2FF, exclude_categories=["M"])))
@example("\u01f0")  # casefold takes its mark off, and NFC puts it on again
def test_words_of_european_letters_stay_as_they_were(text: str) -> None:
    folded = normalize("NFC", text.casefold())
    assume(not any(category(one) == "Mn" for one in folded))
    assert _words().findall(folded) == re.findall(r"[^\W_]+", folded)
