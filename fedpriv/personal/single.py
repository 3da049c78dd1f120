"""Distil one adapter that answers as several together do (Hinton et al. 2015).

A site has few records. So the adapter also learns what the site's models answer together on texts
that they write. The job's own rank is too small for that (docs/results/small-clinics.md), so the
adapter is wider.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from fedpriv.data.batch import Batch, buckets
from fedpriv.data.encode import NO_LOSS, Example
from fedpriv.errors import ModelError
from fedpriv.models.vector import Vector
from fedpriv.personal.together import mean_of_probabilities
from fedpriv.plain_training.passes import passes
from fedpriv.plain_training.public_records import mean_of_gradients
from fedpriv.plain_training.scores import logits_of
from fedpriv.private_training.record_loss import IGNORED, next_tokens
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv.synthetic.language_model import sample

Weighted = Sequence[tuple[Vector, float]]  # models that answer together; weights of sum 1
RANK = 16  # rank of the measurements, with adapters of rank 2
WRITTEN, OWN = 54, 6  # texts for each record, and how often the record itself is learned
MOST = 4_000  # texts in all: a site with many records needs fewer for each
KEPT = 0.5  # share of a record, at most, that a text begins with


def wider(recipe: ModelRecipe, adapters: int) -> ModelRecipe:
    """Return the recipe of a worker whose adapter has room for `adapters` of this recipe's."""
    r = max(RANK, adapters * recipe.lora.r)
    alpha = recipe.lora.alpha * r / recipe.lora.r
    lora = recipe.lora.model_copy(update={"r": r, "alpha": alpha, "frozen_a": False})
    return replace(recipe, lora=lora, model=recipe.model.begun())


def distil(
    worker: Worker,
    narrow: Worker,
    teachers: Weighted,
    records: Sequence[Example],
    *,
    written: int = WRITTEN,
    seed: int = 0,
) -> Vector:
    """Distil one adapter (P,) for a worker. It answers as the teachers do together.

    Args:
        worker: made by the recipe of `wider`, for as many adapters as there are teachers.
        narrow: a worker of the job's own shape.
        teachers: values of that shape, with their weights.
        records: all records that a site trains on, for a language model; at least one.
        written: texts for each record. There are at most `MOST` in all.
        seed: seed of the texts, and of the order in which they are learned.

    Raises:
        ValueError: the worker has no room for so many adapters.

    Privacy:
        None: the adapter is made of raw records, and stays at the site (law 16).
    """
    start = widened(worker, narrow, teachers)
    count = min(written * len(records), MOST)
    texts = write(narrow, teachers, records, count, seed=seed)
    wide = [(widened(worker, narrow, [(values, 1.0)]), weight) for values, weight in teachers]
    return follow(worker, start, wide, [*OWN * list(records), *texts], seed=seed)


def widened(worker: Worker, narrow: Worker, adapters: Weighted) -> Vector:
    """Return the weighted mean of what adapters add to weights, for a worker of larger rank (P,).

    The rows of A that no adapter takes stay as they were drawn, and their columns of B are 0.

    Args:
        narrow: a worker of the adapters' own shape.

    Raises:
        ValueError: the worker has no room for so many adapters.
    """
    r, room = narrow.recipe.lora.r, worker.recipe.lora.r
    if len(adapters) * r > room:
        raise ValueError(f"adapters: expected at most {room // r}, got {len(adapters)}")
    worker.vector.write(worker.initial)
    made = dict(worker.model.named_parameters())
    found = dict(narrow.model.named_parameters())
    with torch.no_grad():
        for name in worker.vector.names:
            if ".lora_" not in name:  # trained whole
                made[name].zero_()
        for first, (values, weight) in zip(range(0, room, r), adapters, strict=False):
            narrow.vector.write(values)
            for name in worker.vector.names:
                if ".lora_A." in name:
                    made[name][first : first + r] = found[name] * weight**0.5
                elif ".lora_B." in name:
                    made[name][:, first : first + r] = found[name] * weight**0.5
                else:
                    made[name] += found[name] * weight
    return worker.vector.read()


def first_target(example: Example) -> int:
    """Count the tokens before the first target. A model needs one token to begin after."""
    assert not isinstance(example.labels, int)
    return next(i for i, label in enumerate(example.labels) if label != NO_LOSS)


def write(
    worker: Worker, teachers: Weighted, records: Sequence[Example], count: int, *, seed: int = 0
) -> list[Example]:
    """Write texts that begin as records do. A teacher, drawn by weight, continues each.

    Args:
        records: records for a language model.

    Privacy:
        As confidential as the records: for the site alone.
    """
    drawn = random.Random(seed)
    begun: list[list[tuple[list[int], int]]] = [[] for _ in teachers]
    chosen = drawn.choices(range(len(teachers)), [weight for _, weight in teachers], k=count)
    for number, teacher in enumerate(chosen):
        record = records[number % len(records)]
        given = first_target(record)
        kept = int(drawn.uniform(0, KEPT) * (len(record.input_ids) - given))
        begun[teacher].append((record.input_ids[: max(1, given + kept)], given))
    made = []
    for (values, _), starts in zip(teachers, begun, strict=True):
        worker.vector.write(values)
        texts = sample(
            worker.model,
            worker.base.tokenizer,
            [start for start, _ in starts],
            rooms=[worker.recipe.model.max_length - len(start) for start, _ in starts],
            temperature=1.0,
            seed=f"{seed}",
        )
        for (start, given), text in zip(starts, texts, strict=True):
            ids = [*start, *text]
            made.append(Example(ids, [*[NO_LOSS] * given, *ids[given:]]))
    return made


def follow(
    worker: Worker,
    start: Vector,
    teachers: Weighted,
    records: Sequence[Example],
    *,
    rate: float = 3e-3,
    batch_size: int = 8,
    seed: int = 0,
) -> Vector:
    """Train from `start` (P,) by AdamW to answer as the teachers do together, in one pass.

    The rate falls linearly to nothing.

    Args:
        teachers: values (P,) in the worker's shape, see `widened`, with their weights.
        records: at least one. A record that comes twice is learned twice.

    Returns:
        The values (P,) after the pass.

    Raises:
        ModelError: numbers overflow.

    Privacy:
        None, as for `distil`.
    """

    def slope(worker: Worker, part: Sequence[Example], values: Vector) -> Vector:
        return gradient(worker, part, values, teachers)

    how: dict[str, Any] = {"epochs": 1, "batch_size": batch_size, "falling": True, "seed": seed}
    for values in passes(worker, start, records, rate, gradient=slope, **how):
        return values
    raise ModelError("The single adapter's numbers overflow as it learns. Leave out --single.")


def gradient(
    worker: Worker, records: Sequence[Example], values: Vector, teachers: Weighted
) -> Vector:
    """Return the gradient (P,) of the mean of `divergences` over records, at `values` (P,)."""
    found = list(_answered(worker, records, teachers))
    worker.vector.write(values)
    losses = ((partial(divergences, batch=one, targets=mean), who) for one, mean, who in found)
    return mean_of_gradients(worker, losses, len(records))


@torch.no_grad()
def _answered(
    worker: Worker, records: Sequence[Example], teachers: Weighted
) -> Iterator[tuple[Batch, torch.Tensor, list[int]]]:
    """Yield batches of one length, the teachers' joint answers, and the numbers of the records."""
    for length, members in buckets(records, worker.recipe.model.max_length).items():
        batch = worker.batch([records[i] for i in members], length)
        answers = []
        for values, _ in teachers:
            worker.vector.write(values)
            answers.append(logits_of(worker, batch))
        mean = mean_of_probabilities(answers, [weight for _, weight in teachers])
        yield batch, mean.exp(), members


def divergences(model: torch.nn.Module, batch: Batch, targets: torch.Tensor) -> torch.Tensor:
    """Return a model's cross-entropy against given answers, as the mean for each record (B,).

    Args:
        targets: probabilities, (B, T, V).
    """
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1), reduction="none")
    counted = next_tokens(batch.labels) != IGNORED
    return (losses.view(counted.shape) * counted).sum(1) / counted.sum(1).clamp_min(1)
