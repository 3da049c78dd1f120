"""What a model answers to prompts, and how much of what people wrote is in it (ROUGE)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedpriv.data.batch import collate
from fedpriv.data.encode import NO_LOSS, Example
from fedpriv.models.vector import Vector
from fedpriv.training.worker import Worker

BATCH = 16
_WORD = re.compile(r"[^\W_]+")  # in any language


@dataclass(frozen=True)
class Rouge:
    """F-measures from 0 to 1, means over the records: of words, of pairs of words in a row, and of
    the longest common subsequence.

    Source:
        Lin, "ROUGE: a package for automatic evaluation of summaries", ACL workshop, 2004.
    """

    rouge_1: float
    rouge_2: float
    rouge_l: float


@torch.inference_mode()
def completions(worker: Worker, examples: Sequence[Example], parameters: Vector) -> list[str]:
    """What a model with these trained values (P,) goes on with after each prompt.

    The likeliest token each time (greedy), so that it is the same every time; as many as a
    record may have.

    Args:
        examples: of prompts and completions, see `fedpriv.data.encode.encode_completion`.

    Privacy:
        Of a site's own records: it never leaves the site.
    """
    worker.vector.write(parameters)
    tokenizer: Any = worker.base.tokenizer
    prompts = [example.input_ids[: _prompt(example)] for example in examples]
    made = [""] * len(examples)
    order = sorted(range(len(examples)), key=lambda i: len(prompts[i]))
    for first in range(0, len(order), BATCH):
        members = order[first : first + BATCH]
        width = max(len(prompts[i]) for i in members)
        rows = [Example(prompts[i], prompts[i]) for i in members]
        batch = collate(rows, tokenizer.pad_token_id, width, "left").to(worker.device)
        found = worker.model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            max_new_tokens=max(1, worker.recipe.model.max_length - width),
            do_sample=False,
            use_cache=True,
            pad_token_id=tokenizer.pad_token_id,
        )
        for i, row in zip(members, found, strict=True):
            made[i] = tokenizer.decode(row[width:], skip_special_tokens=True)
    return made


def references(worker: Worker, examples: Sequence[Example]) -> list[str]:
    """The completion of each example, as far as the model reads it."""
    tokenizer: Any = worker.base.tokenizer
    targets = (example.input_ids[_prompt(example) :] for example in examples)
    return [tokenizer.decode(ids, skip_special_tokens=True) for ids in targets]


def rouge(made: Sequence[str], expected: Sequence[str]) -> Rouge:
    """How much of what was expected is in what was made; at least one text each."""
    from torchmetrics.functional.text import rouge_score

    found = rouge_score(
        list(made),
        list(expected),
        normalizer=str.casefold,
        tokenizer=_WORD.findall,
        rouge_keys=("rouge1", "rouge2", "rougeL"),
    )
    return Rouge(*(float(found[f"rouge{kind}_fmeasure"]) for kind in ("1", "2", "L")))


def _prompt(example: Example) -> int:
    """How many tokens come before the first that is a target; a model needs one to go on from."""
    assert not isinstance(example.labels, int)
    return next(i for i, label in enumerate(example.labels) if label != NO_LOSS)
