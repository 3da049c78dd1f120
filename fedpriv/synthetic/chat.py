"""Instructions put to a causal language model on this machine, by its tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.data.encode import template_of
from fedpriv.synthetic.instructed import Ask
from fedpriv.synthetic.language_model import Lender, sample

ANSWER = 1024  # tokens, at most


def chat(model: Lender, *, temperature: float, longest: int) -> Ask:
    """Return what puts instructions to such a model.

    Args:
        model: lends it, with a tokenizer that has a chat template.
        longest: tokens of a record, which are enough of an answer.
    """

    def ask(instructions: Sequence[str], seed: str) -> list[str]:
        with model() as (lent, tokenizer):
            starts = [asked(tokenizer, instruction) for instruction in instructions]
            room = max(map(len, starts)) + min(longest, ANSWER)
            made = sample(lent, tokenizer, starts, longest=room, temperature=temperature, seed=seed)
            return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in made]

    return ask


def asked(tokenizer: Any, instruction: str) -> list[int]:
    """Return the tokens of what a user says, up to where the model answers."""
    messages = [{"role": "user", "content": instruction}]
    options = {"chat_template": template_of(tokenizer), "add_generation_prompt": True}
    found = tokenizer.apply_chat_template(messages, return_dict=True, **options)
    return list(found["input_ids"])
