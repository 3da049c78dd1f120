"""Measure how much of what people wrote is in what a model wrote after a prompt (ROUGE)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from unicodedata import category, normalize

from fedpriv.errors import ConfigError

# Ranges of scripts that put no spaces between words. Each character counts as a word.
HAN = r"\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
OTHERS = r"\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f\U00020000-\U0003ffff\u0e01-\u0e3a\u0e40-\u0eff"
OTHERS += r"\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"  # Myanmar and Khmer


@dataclass(frozen=True)
class Rouge:
    """Hold F-measures from 0 to 1, means over the records. Of several references the best counts.

    Source:
        Lin, "ROUGE: a package for automatic evaluation of summaries", ACL workshop, 2004.
    """

    rouge_1: float
    rouge_2: float
    rouge_l: float


def rouge(made: Sequence[str], expected: Sequence[Sequence[str]]) -> Rouge:
    """Measure how much of what was expected is in what was made, with at least one text each.

    Args:
        expected: references of each text that are equally good, at least one.
    """
    return Rouge(*(_f_measure(made, expected, kind) for kind in ("1", "2", "L")))


def _f_measure(made: Sequence[str], expected: Sequence[Sequence[str]], kind: str) -> float:
    """Compute one kind by itself.

    With several kinds, the library chooses a reference by the first.
    """
    try:
        from torchmetrics.functional.text import rouge_score
    except ImportError:
        problem = "torchmetrics is not installed, which ROUGE is computed with"
        raise ConfigError(problem, fix="Type: pip install torchmetrics.") from None

    found = rouge_score(
        list(made),
        [list(one) for one in expected],
        accumulate="best",
        normalizer=lambda text: normalize("NFC", text.casefold()),
        tokenizer=_words().findall,
        rouge_keys=f"rouge{kind}",
    )
    return float(found[f"rouge{kind}_fmeasure"])


@cache
def _words() -> re.Pattern[str]:
    """Match a word of any language: letters, digits, and the marks on them, such as vowel signs."""
    every = map(chr, range(sys.maxunicode + 1))
    marks = "".join(one for one in every if category(one).startswith("M"))
    alone, within = f"[{HAN}{OTHERS}]", rf"[^\W_{HAN}{OTHERS}]"
    return re.compile(rf"(?=[^\W_]|[{marks}]){alone}|{within}(?:{within}|[{marks}])*")
