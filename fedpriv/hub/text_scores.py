"""Score how near a model's texts are to what people wrote: BLEU and ROUGE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any

from fedpriv.errors import ConfigError
from fedpriv.plain_training.rouge import HAN, OTHERS, Rouge, rouge


@dataclass(frozen=True)
class TextScores:
    """Scores of answers to prompts that each have one reference or several.

    Attributes:
        bleu: score of all answers together, 0 to 100, against all references at once.
        signature: sacrebleu's signature, by which others compute the same.
        rouge: means over the answers, each scored against the reference that is best for it.

    Source:
        Papineni et al., "BLEU: a method for automatic evaluation of machine translation", ACL 2002;
        Post, "A call for clarity in reporting BLEU scores", WMT 2018.
    """

    bleu: float
    signature: str
    rouge: Rouge

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as JSON."""
        return {"bleu": self.bleu, "signature": self.signature, **asdict(self.rouge)}


def check_installed() -> None:
    """Refuse to score without sacrebleu, before anything is written.

    Raises:
        ConfigError: sacrebleu is not installed; the error names the extra.
    """
    if find_spec("sacrebleu") is None:
        fix = "Type: pip install 'fedpriv[text]'."
        raise ConfigError("sacrebleu is not installed", key="--score", fix=fix)


def text_scores(
    answers: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False
) -> TextScores:
    """Score one or more answers, each against one or more references of its own.

    Args:
        lowercase: ignore case in BLEU. ROUGE always ignores it.
    """
    from sacrebleu.metrics.bleu import BLEU

    bleu = BLEU(lowercase=lowercase, tokenize=_tokenizer(references))
    columns = [list(column) for column in zip_longest(*references)]  # None: no further reference
    found = bleu.corpus_score(list(answers), columns)
    return TextScores(found.score, str(bleu.get_signature()), rouge(answers, references))


def _tokenizer(references: Sequence[Sequence[str]]) -> str:
    """Choose one of sacrebleu's tokenizers. In scripts without spaces, each character counts.

    "zh" splits only Han into characters. "char" splits all, so it is for texts mostly of such
    scripts.
    """
    text = "".join("".join(one.split()) for several in references for one in several)
    apart = re.findall(f"[{HAN}{OTHERS}]", text)
    if 2 * len(apart) > len(text) and re.search(f"[{OTHERS}]", text):
        return "char"
    return "zh" if apart else "13a"
