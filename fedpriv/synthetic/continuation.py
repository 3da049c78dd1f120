"""Continue a prompt with a model. The prompt begins as a record of the model's job does."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from fedpriv.data.encode import conversation
from fedpriv.synthetic.chat import asked
from fedpriv.synthetic.language_model import beginning, room, texts_after, tokens_of, window

log = logging.getLogger(__name__)


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
        prompts: texts, or conversations as JSON, which the chat template writes.
        longest: tokens of a record. Of a longer prompt only the end is read, see `window`.
        new: the most tokens of a text. Without it, see `room`.
        chat: whether a text is what a user says to a chat model.
        temperature: temperature at which tokens are drawn. 0 takes the likeliest each time.
        seed: seed of the drawing.
    """
    whole = [_start(tokenizer, one, chat=chat) for one in prompts]
    starts = [window(model, one, longest) for one in whole]
    if cut := sum(len(one) > len(start) for one, start in zip(whole, starts, strict=True)):
        log.warning("%d of %d prompts are too long: only their ends are read.", cut, len(whole))
    rooms = [new or room(len(start), longest) for start in starts]
    return texts_after(model, tokenizer, starts, rooms, temperature=temperature, seed=seed)


def prompt_of(value: object, field: str) -> str:
    """Return what a model continues of a record's field, or "" if there is nothing.

    For a conversation that is all but the assistant's last message, as JSON. A field `prompt` is
    asked as a whole.
    """
    talk = conversation(value)
    if not talk:
        return value if isinstance(value, str) and field != "messages" else ""
    if field != "prompt" and talk[-1]["role"] == "assistant":
        talk = talk[:-1]
    return json.dumps(talk, ensure_ascii=False) if talk else ""


def _start(tokenizer: Any, prompt: str, *, chat: bool) -> list[int]:
    """Return the tokens with which a record that has this prompt begins."""
    talk = conversation(prompt) or (chat and [{"role": "user", "content": prompt}])
    tokens = asked(tokenizer, talk) if talk else tokens_of(tokenizer, prompt, special=True)
    return tokens or beginning(tokenizer)
