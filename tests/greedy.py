"""What a model writes, token by token, to hold a library's way beside."""

from __future__ import annotations

from typing import Any

import torch


def by_hand(model: Any, tokenizer: Any, prompt: str, longest: int) -> str:
    """The likeliest token each time, without keys and values kept."""
    ids = tokenizer(prompt)["input_ids"]
    known = len(ids)
    while len(ids) < longest:
        with torch.inference_mode():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == tokenizer.eos_token_id:
            break
    return str(tokenizer.decode(ids[known:], skip_special_tokens=True))
