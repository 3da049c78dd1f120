"""What a model makes of prompts, and ROUGE as it is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpriv.data.encode import encode_completion
from fedpriv.personal.evaluation import completions, references

Make = Callable[..., Any]


def test_a_completion_does_not_depend_on_who_is_beside_it(make_worker: Make) -> None:
    """Prompts of several lengths are padded on the left."""
    worker = make_worker("llama")
    tokenizer = worker.base.tokenizer
    pairs = [("a", "fever"), ("a longer prompt", "cough"), ("mid", "pain")]
    found = [encode_completion(*pair, tokenizer, 32)[0] for pair in pairs]
    together = completions(worker, found, worker.model)
    for example, text in zip(found, together, strict=True):
        assert completions(worker, [example], worker.model) == [text]
        assert text
    assert references(worker, found) == ["fever", "cough", "pain"]


def test_other_values_complete_otherwise(make_worker: Make) -> None:
    worker = make_worker("llama")
    [example] = encode_completion("fever", "cough", worker.base.tokenizer, 32)
    moved = worker.initial + np.float32(0.5)
    [base] = completions(worker, [example], worker.model)
    worker.vector.write(moved)
    [other] = completions(worker, [example], worker.model)
    assert base != other
