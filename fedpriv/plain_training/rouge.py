"""How much of what people wrote is in what a model made of a prompt (ROUGE)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fedpriv.errors import ConfigError

_WORD = re.compile(r"[^\W_]+")  # in any language


@dataclass(frozen=True)
class Rouge:
    """F-measures from 0 to 1, means over the records; of several references, each takes the best.

    Source:
        Lin, "ROUGE: a package for automatic evaluation of summaries", ACL workshop, 2004.
    """

    rouge_1: float
    rouge_2: float
    rouge_l: float


def rouge(made: Sequence[str], expected: Sequence[str | Sequence[str]]) -> Rouge:
    """Measure how much of what was expected is in what was made; at least one text each.

    Args:
        expected: a text, or several that are equally good.
    """
    several = [[one] if isinstance(one, str) else list(one) for one in expected]
    return Rouge(*(_f_measure(list(made), several, kind) for kind in ("1", "2", "L")))


def _f_measure(made: list[str], expected: list[list[str]], kind: str) -> float:
    """Compute one kind by itself: of several, the library chooses a reference by the first."""
    try:
        from torchmetrics.functional.text import rouge_score
    except ImportError:
        problem = "torchmetrics is not installed, which ROUGE is computed with"
        raise ConfigError(problem, fix="Type: pip install torchmetrics.") from None

    found = rouge_score(
        made,
        expected,
        accumulate="best",
        normalizer=str.casefold,
        tokenizer=_WORD.findall,
        rouge_keys=f"rouge{kind}",
    )
    return float(found[f"rouge{kind}_fmeasure"])
