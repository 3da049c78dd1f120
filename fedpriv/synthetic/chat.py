"""Instructions put to a causal language model on this machine, by its tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.data.encode import Cause
from fedpriv.errors import DataError
from fedpriv.synthetic.instructed import Ask
from fedpriv.synthetic.language_model import Lender, texts_after

ANSWER = 1024  # tokens, at most


def chat(model: Lender, *, temperature: float, longest: int) -> Ask:
    """Return what puts instructions to such a model.

    Args:
        model: lends it, with a tokenizer that has a chat template.
        longest: tokens of a record, which are enough of an answer.
    """

    def ask(instructions: Sequence[str], seed: str) -> list[str]:
        with model() as (lent, tokenizer):
            starts = [asked(tokenizer, user_says(text)) for text in instructions]
            rooms = [min(longest, ANSWER)] * len(starts)
            return texts_after(lent, tokenizer, starts, rooms, temperature=temperature, seed=seed)

    return ask


def user_says(text: str) -> list[dict[str, Any]]:
    """Return the conversation that begins so."""
    return [{"role": "user", "content": text}]


def asked(tokenizer: Any, talk: list[dict[str, Any]]) -> list[int]:
    """Return the tokens of a conversation, up to where the model answers.

    Raises:
        DataError: the chat template refuses it.
    """
    how = {"add_generation_prompt": True, "return_dict": True}
    try:
        return list(tokenizer.apply_chat_template(talk, **how)["input_ids"])
    except Exception:  # templates raise what they like
        raise DataError(Cause.REFUSED.said, fix=Cause.REFUSED.fix) from None
