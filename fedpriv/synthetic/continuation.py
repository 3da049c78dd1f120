"""What a model writes after a prompt, which begins as a record of its job begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.data.encode import conversation
from fedpriv.synthetic.chat import asked
from fedpriv.synthetic.language_model import beginning, greedy, sample, tokens_of


def continue_prompts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    *,
    longest: int,
    new: int | None = None,
    chat: bool,
    temperature: float,
    seed: str,
) -> list[str]:
    """Return what the model writes after each prompt, until it ends or has written all it may.

    Args:
        longest: tokens that prompt and text may have together. Of a longer prompt the end is read.
        new: tokens of the text, at most.
        chat: a prompt is what a user says to a chat model.
        temperature: at which tokens are drawn; 0 takes the likeliest each time.
        seed: of what is drawn.
    """
    starts = [_start(tokenizer, prompt, longest, chat=chat) for prompt in prompts]
    if new is not None:
        longest = min(longest, max(map(len, starts), default=0) + new)
    if not temperature:
        return greedy(model, tokenizer, starts, longest)
    made = sample(model, tokenizer, starts, longest=longest, temperature=temperature, seed=seed)
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in made]


def said_first(messages: object) -> str:
    """Return what the user says first in a conversation."""
    talk = conversation(messages) or []
    return next((turn["content"] for turn in talk if turn["role"] == "user"), "")


def _start(tokenizer: Any, prompt: str, longest: int, *, chat: bool) -> list[int]:
    """Begin as a record does; of one that is too long take the end, with half for the answer."""
    tokens = asked(tokenizer, prompt) if chat else tokens_of(tokenizer, prompt, special=True)
    tokens = tokens or beginning(tokenizer)
    return tokens if len(tokens) < longest else tokens[-(longest // 2) :]
