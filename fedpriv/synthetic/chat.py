"""Put instructions to a causal language model on this machine, by its tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.data.encode import Cause, template_text
from fedpriv.errors import DataError
from fedpriv.synthetic.instructed import Ask
from fedpriv.synthetic.language_model import Lender, texts_after, tokens_of

ANSWER = 1024  # the most tokens


def chat(model: Lender, *, temperature: float, longest: int) -> Ask:
    """Return a function that puts instructions to such a model.

    Args:
        model: lends the model, with a tokenizer that has a chat template.
        longest: tokens of a record. An answer needs no more.
    """

    def ask(instructions: Sequence[str], seed: str) -> list[str]:
        with model() as (lent, tokenizer):
            starts = [
                asked(tokenizer, [{"role": "user", "content": text}]) for text in instructions
            ]
            rooms = [min(longest, ANSWER)] * len(starts)
            return texts_after(lent, tokenizer, starts, rooms, temperature=temperature, seed=seed)

    return ask


def asked(tokenizer: Any, talk: list[dict[str, Any]]) -> list[int]:
    """Return the tokens of a conversation, up to where the model answers.

    Raises:
        DataError: the chat template refuses the conversation.
    """
    text = template_text(talk, tokenizer, add_generation_prompt=True)
    if text is None:
        raise DataError(Cause.REFUSED.said, fix=Cause.REFUSED.fix)
    return tokens_of(tokenizer, text, special=False)
