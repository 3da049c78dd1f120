"""BLEU against several references is that of its definition, and of sacrebleu's own command."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ConfigError
from fedpriv.hub.text_scores import check_installed, text_scores

words = st.lists(st.sampled_from(["fever", "cough", "pain", "no", "the"]), min_size=4, max_size=9)
case = st.tuples(words, st.lists(words, min_size=1, max_size=3))


def by_definition(answers: Sequence[Sequence[str]], references: Sequence[list[list[str]]]) -> float:
    """Clipped by the most that any one reference has; an order without a match counts half, ¼, …"""
    matched, total, smooth, length, nearest = [0] * 4, [0] * 4, 1.0, 0, 0
    for answer, given_ in zip(answers, references, strict=True):
        length += len(answer)
        nearest += min((abs(len(one) - len(answer)), len(one)) for one in given_)[1]
        for n in range(1, 5):
            runs = [
                Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
                for text in (answer, *given_)
            ]
            most: Counter[tuple[str, ...]] = Counter()
            for reference in runs[1:]:
                most |= reference
            matched[n - 1] += (runs[0] & most).total()
            total[n - 1] += runs[0].total()
    if not matched[0]:
        return 0.0
    logs = 0.0
    for hits, count in zip(matched, total, strict=True):
        if not hits:
            smooth *= 2
        logs += math.log((hits or 1 / smooth) / count) / 4
    return 100 * math.exp(logs + min(0.0, 1 - nearest / length))


@given(st.lists(case, min_size=1, max_size=4))
def test_bleu_is_what_it_is_defined_as(cases: list[tuple[list[str], list[list[str]]]]) -> None:
    answers = [" ".join(answer) for answer, _ in cases]
    references = [[" ".join(one) for one in several] for _, several in cases]
    expected = by_definition([answer for answer, _ in cases], [several for _, several in cases])
    assert text_scores(answers, references).bleu == pytest.approx(expected, abs=1e-6)


def test_the_command_of_sacrebleu_finds_the_same(tmp_path: Path) -> None:
    answers = ["The patient has a Fever, since May.", "no pain at all, in the chest"]
    references = [["the patient has fever since May."], ["No pain in the chest at all."]]
    (tmp_path / "made").write_text("\n".join(answers))
    (tmp_path / "written").write_text("\n".join(one for (one,) in references))
    for lowercase in (False, True):
        words = [sys.executable, "-m", "sacrebleu", "written", "-i", "made", "-b", "-w", "6"]
        done = subprocess.run(
            words + ["-lc"] * lowercase, cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found = text_scores(answers, references, lowercase=lowercase)
        assert found.bleu == pytest.approx(float(done.stdout), abs=1e-5)
        assert f"case:{'lc' if lowercase else 'mixed'}" in found.signature
    assert found.as_dict().keys() == {"bleu", "signature", "rouge_1", "rouge_2", "rouge_l"}


@pytest.mark.parametrize(
    ("answer", "reference", "tokenizer"),
    [
        ("no pain in the chest", "no pain in the chest at all", "13a"),
        ("Schmerzen im Bauch seit Mai", "Schmerzen im Bauch seit gestern", "13a"),
        ("病 人 没 有 发 热", "病 人 没 有 发 烧", "zh"),
        ("CT shows 病 灶 in the chest", "CT shows 病 变 in the chest", "zh"),
        ("the patient took ยา for pain", "the patient took ยา for it", "zh"),  # is mostly English
        ("患 者 は 発 熱 な し", "患 者 は 発 熱 あ り", "char"),
        ("C T で 肺 炎 な し", "C T で 肺 炎 あ り", "char"),
        ("ไ ม ่ ม ี ไ ข ้", "ไ ม ่ ม ี ไ อ", "char"),
    ],
)
def test_a_script_without_spaces_is_scored_by_its_characters(
    answer: str, reference: str, tokenizer: str
) -> None:
    def written(text: str) -> str:
        return text if tokenizer == "13a" else re.sub(r"(?<=[^a-z]) (?=[^a-z])", "", text)

    found = text_scores([written(answer)], [[written(reference)]])
    assert f"|tok:{tokenizer}|" in found.signature
    assert found.bleu == pytest.approx(by_definition([answer.split()], [[reference.split()]]))


def test_scores_of_texts_with_spaces_are_those_of_before() -> None:
    found = text_scores(["Pain, in the chest: 39,5."], [["no pain, in the Chest at all: 39,5."]])
    assert found.bleu == pytest.approx(23.76101887396088)
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    rouge = (found.rouge.rouge_1, found.rouge.rouge_2, found.rouge.rouge_l)
    assert rouge == pytest.approx((4 / 5, 8 / 13, 4 / 5))


def test_without_the_library_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ConfigError, match=r"--score: .*pip install 'fedpriv\[text\]'"):
        check_installed()
