"""What a model writes after a prompt, which begins as a record of its job begins."""

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
        prompts: texts, and conversations as JSON, which the chat template writes.
        longest: tokens of a record. Of a longer prompt the end is read, see `window`.
        new: tokens of the text, at most; see `room` for what it is without it.
        chat: a text is what a user says to a chat model.
        temperature: at which tokens are drawn; 0 takes the likeliest each time.
        seed: of what is drawn.
    """
    whole = [_start(tokenizer, one, chat=chat) for one in prompts]
    starts = [window(model, one, longest) for one in whole]
    if cut := sum(len(one) > len(start) for one, start in zip(whole, starts, strict=True)):
        log.warning("%d of %d prompts are too long: only their ends are read.", cut, len(whole))
    rooms = [new or room(len(start), longest) for start in starts]
    return texts_after(model, tokenizer, starts, rooms, temperature=temperature, seed=seed)


def prompt_of(value: object, field: str) -> str:
    """Return what a model goes on from, of a record's field; "" if there is nothing.

    Of a conversation that is all but what the assistant says last, as JSON. A prompt is asked as a
    whole.
    """
    talk = conversation(value)
    if not talk:
        return value if isinstance(value, str) and field != "messages" else ""
    if field != "prompt" and talk[-1]["role"] == "assistant":
        talk = talk[:-1]
    return json.dumps(talk, ensure_ascii=False) if talk else ""


def _start(tokenizer: Any, prompt: str, *, chat: bool) -> list[int]:
    """Begin as a record does."""
    talk = conversation(prompt) or (chat and [{"role": "user", "content": prompt}])
    tokens = asked(tokenizer, talk) if talk else tokens_of(tokenizer, prompt, special=True)
    return tokens or beginning(tokenizer)
