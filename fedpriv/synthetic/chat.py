"""Instructions put to a causal language model on this machine, by its tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
            talks = ([{"role": "user", "content": instruction}] for instruction in instructions)
            starts = [asked(tokenizer, talk) for talk in talks]
            rooms = [min(longest, ANSWER)] * len(starts)
            how: dict[str, Any] = {"temperature": temperature, "seed": seed}
            return texts_after(lent, tokenizer, starts, rooms, **how)

    return ask


def asked(tokenizer: Any, talk: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the tokens of a conversation, up to where the model answers.

    Raises:
        DataError: the chat template refuses it.
    """
    how = {"add_generation_prompt": True, "return_dict": True}
    try:
        return list(tokenizer.apply_chat_template(list(talk), **how)["input_ids"])
    except Exception:  # templates raise what they like
        raise DataError(Cause.REFUSED.said, fix=Cause.REFUSED.fix) from None
