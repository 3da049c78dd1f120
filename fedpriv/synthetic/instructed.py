"""Ask a model that follows instructions for records, and for others like them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from fedpriv.synthetic.generator import with_prompt
from fedpriv.synthetic.records import Record

# Ways to write, one drawn for each record that is asked for, so that records differ.
#
# Source: the variation prompts published with Zou et al., "PE-SGD", ICLR 2026 (github.com/
# LindaLydia/PE-SGD, examples/prompt), after Xie et al., "Differentially Private Synthetic Data via
# Foundation Model APIs 2: Text", ICML 2024.
TONES = (
    "in a professional way",
    "in a professional tone",
    "in a professional style",
    "in a concise manner",
    "in a creative style",
    "using imagination",
    "in a storytelling tone",
    "in a formal manner",
    "using a variety of sentence structures",
)
# (instructions, seed) → an answer to each, or "" where there was none.
Ask = Callable[[Sequence[str], str], list[str]]


class InstructedGenerator:
    """Put RANDOM and VARIATION as instructions, each in a tone that is drawn.

    With labels, each record is asked for with a label that is drawn. A variation keeps its label.
    With prompts and completions, the prompt is kept and its completion asked for again.

    Args:
        ask: puts instructions to the model.
        describe: what a record is, such as "a discharge letter".
        fields: fields of a record.
        labels: names of the labels; empty without labels.
        prompt: prompt of every record that is made, where records have prompts.
    """

    def __init__(
        self,
        ask: Ask,
        describe: str,
        fields: Sequence[str],
        labels: Sequence[str],
        prompt: str | None = None,
    ) -> None:
        self._ask, self._describe = ask, describe
        self._fields, self._text = fields, "text" if "text" in fields else "completion"
        self._labels, self._prompt = labels, prompt

    def random(self, count: int, seed: str) -> list[Record]:
        """Make `count` records from the description and a tone.

        Raises:
            RoundError: records have prompts, and none is set.
        """
        given = with_prompt(self._fields, self._prompt)
        draw = Random(seed)
        labels = draw.choices(self._labels, k=count) if self._labels else [None] * count
        asked = [self._instruction(given, label, draw) for label in labels]
        return [
            {**given, self._text: text.strip(), **({} if label is None else {"label": label})}
            for text, label in zip(self._ask(asked, seed), labels, strict=True)
        ]

    def variations(self, records: Sequence[Record], seed: str) -> list[Record]:
        """Make another record like each, with the same label or prompt."""
        draw = Random(seed)
        asked = [self._instruction(record, record.get("label"), draw) for record in records]
        answers = self._ask(asked, seed)
        return [
            {**record, self._text: text.strip()}
            for record, text in zip(records, answers, strict=True)
        ]

    def _instruction(self, like: Record, label: str | None, draw: Random) -> str:
        what = self._describe if label is None else f"{self._describe} labelled {label!r}"
        tone = draw.choice(TONES)
        given = f"{like['prompt']}\n\n" if like.get("prompt") else ""
        if self._text not in like:
            return f"{given}Write {what}, {tone}. Answer with its text alone."
        return (
            f"{given}{like[self._text]}\n\nBased on the sample above, write another one: {what},"
            f" {tone}. Answer with its text alone."
        )
