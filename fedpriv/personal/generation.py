"""What a model answers to the prompts of a site's own records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.data.encode import NO_LOSS, Example
from fedpriv.private_training.worker import Worker
from fedpriv.synthetic.language_model import greedy


def completions(worker: Worker, examples: Sequence[Example], model: Any) -> list[str]:
    """Return what a model writes after each prompt.

    It takes the likeliest token each time (greedy), so that it is the same every time; as many as a
    record may have.

    Args:
        examples: of prompts and completions, see `fedpriv.data.encode.encode_completion`.
        model: the worker's own, with the values that were last written, or another of its base.

    Privacy:
        Of a site's own records: it never leaves the site.
    """
    prompts = [example.input_ids[: first_target(example)] for example in examples]
    return greedy(model, worker.base.tokenizer, prompts, worker.recipe.model.max_length)


def references(worker: Worker, examples: Sequence[Example]) -> list[str]:
    """Return the completion of each example, as far as the model reads it."""
    tokenizer: Any = worker.base.tokenizer
    targets = (example.input_ids[first_target(example) :] for example in examples)
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in targets]


def first_target(example: Example) -> int:
    """Count the tokens before the first target; a model needs one to begin after."""
    assert not isinstance(example.labels, int)
    return next(i for i, label in enumerate(example.labels) if label != NO_LOSS)
