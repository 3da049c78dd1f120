"""Instructions through a chat template: the model sees them, and its answer alone comes back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from fedpriv.synthetic.chat import chat

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def test_it_answers_after_the_template(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("llama", dtype="float32")
    tokenizer = copy.deepcopy(worker.base.tokenizer)
    tokenizer.chat_template = "{{ strftime_now('%Y') }}" + TEMPLATE
    ask = chat(lambda: nullcontext((worker.model, tokenizer)), temperature=1.0, longest=12)
    ask(["first"], "s")  # the model is tried before it writes
    seen: list[Any] = []
    plain = worker.model.generate

    def generate(**options: Any) -> Any:
        seen.extend(tokenizer.batch_decode(options["input_ids"], skip_special_tokens=True))
        return plain(**options)

    worker.model.generate = generate
    found = ask(["write a note", "another"], "s")
    assert sorted(seen) == ["2024[user]another[assistant]", "2024[user]write a note[assistant]"]
    assert len(found) == 2
    assert not any("[assistant]" in one for one in found)
    assert all(len(tokenizer(one)["input_ids"]) <= 24 for one in found)
    assert ask(["write a note", "another"], "s") == found
