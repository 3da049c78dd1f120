"""Ways for a site to go on from a federated adapter with its own records, to compare them.

The first is what `fedpriv-client personalise` does; the others are here for the table of
docs/results.md alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedpriv.config.personal import PersonalSection
from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal.training import train_alone
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.scores import Scores, logits_of, score, score_answers
from fedpriv.training.worker import Worker

Model = Callable[[Sequence[Example]], Scores]  # scores records
WAYS = {
    "personal": "the adapter is trained further",
    "second": "it is added to the frozen base, and a second adapter is trained",
    "pulled": "it is trained further, and pulled towards where it began",
    "mixed": "it is trained further, and goes back a part of the way if validation says so",
    "averaged": "a model is trained without it, and the two answer together, weighed by validation",
    "fifth": "the same, and it has a fifth of the weight whatever validation says",
}
PULL = 0.1  # of the distance, beside the gradient
SHARES = (0.25, 0.5, 0.75)  # of the way
TOGETHER = ("averaged", "fifth")
FIFTH = 0.2
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # of the federated model, where two answer together


def go_on(
    way: str,
    worker: Worker,
    federated: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: PersonalSection,
    seed: int,
    own: Vector | None = None,
) -> Model:
    """The model that a site makes of an adapter (P,), one of `WAYS`.

    Args:
        own: (P,), what it has trained from the base model, where it is at hand; for `TOGETHER`.

    Privacy:
        None: trained on raw records. For public ones, or for the site alone.
    """
    match way:
        case "second":
            return _second(worker, federated, records, validation, settings, seed)
        case "pulled":
            pulled = _pulled_to(federated)
            made = train_alone(
                worker, federated, records, validation, settings, seed=seed, gradient=pulled
            )
            return AsItIs(worker, made.values)
        case "averaged" | "fifth":
            if own is None:
                own = train_alone(
                    worker, worker.initial, records, validation, settings, seed=seed
                ).values
            if way == "fifth":
                return together(worker, own, federated, FIFTH)
            return averaged(worker, own, federated, validation)
    made = train_alone(worker, federated, records, validation, settings, seed=seed)
    if way == "mixed":
        mixes = [federated + share * (made.values - federated) for share in SHARES]
        tried = [made.values, *(mix.astype(np.float32) for mix in mixes)]
        losses = [score(worker, validation, values).eval_loss for values in tried]
        return AsItIs(worker, tried[int(np.argmin(losses))])
    return AsItIs(worker, made.values)


@dataclass(frozen=True, eq=False)
class AsItIs:
    """A model with these trained values (P,)."""

    worker: Worker
    values: Vector

    def __call__(self, examples: Sequence[Example]) -> Scores:
        """Its scores on records."""
        return score(self.worker, examples, self.values)


def averaged(
    worker: Worker, own: Vector, federated: Vector, validation: Sequence[Example]
) -> Model:
    """Two models that answer together: the mean of their probabilities.

    The federated one has the weight of `WEIGHTS` that has the lowest loss on the validation
    records; without any weight, it is the site's own.

    Privacy:
        None, as `go_on`.
    """
    tried = [together(worker, own, federated, weight) for weight in WEIGHTS]
    losses = [model(validation).eval_loss for model in tried]
    return tried[int(np.argmin(losses))]


def together(worker: Worker, one: Vector, other: Vector, weight: float) -> Model:
    """Two models with trained values (P,), the other one's probabilities with a weight below 1."""
    if not weight:
        return AsItIs(worker, one)

    def answer(batch: Batch) -> torch.Tensor:
        found = []
        for values, share in ((one, 1 - weight), (other, weight)):
            worker.vector.write(values)
            found.append(logits_of(worker, batch).log_softmax(-1).add_(math.log(share)))
        return torch.logaddexp(found[0], found[1], out=found[0])

    return lambda examples: score_answers(worker, examples, answer)


def _pulled_to(anchor: Vector) -> Callable[[Worker, Sequence[Example], Vector], Vector]:
    def gradient(worker: Worker, batch: Sequence[Example], values: Vector) -> Vector:
        found: Vector = mean_gradient(worker, batch, values) + np.float32(PULL) * (values - anchor)
        return found

    return gradient


def _second(
    worker: Worker,
    federated: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: PersonalSection,
    seed: int,
) -> Model:
    start = _fresh_adapter(worker, federated)
    with in_the_base(worker, federated):
        made = train_alone(worker, start, records, validation, settings, seed=seed)

    def of_both(examples: Sequence[Example]) -> Scores:
        with in_the_base(worker, federated):
            return score(worker, examples, made.values)

    return of_both


def _fresh_adapter(worker: Worker, federated: Vector) -> Vector:
    """The first values of an adapter, with what else is trained as it is in `federated`."""
    start, begin = worker.initial.copy(), 0
    for name, shape in zip(worker.vector.names, worker.vector.shapes, strict=True):
        size = int(np.prod(shape))
        if ".lora_" not in name:
            start[begin : begin + size] = federated[begin : begin + size]
        begin += size
    return start


@contextmanager
def in_the_base(worker: Worker, adapter: Vector) -> Iterator[None]:
    """Add an adapter's product (P,) to the frozen weights, for the time of a `with` block."""
    worker.vector.write(adapter)
    layers: list[Any] = [
        module
        for module in worker.model.modules()
        if hasattr(module, "get_delta_weight") and hasattr(module, "lora_A")
    ]
    kept = [layer.get_base_layer().weight.detach().clone() for layer in layers]
    with torch.no_grad():
        for layer in layers:
            layer.get_base_layer().weight += layer.get_delta_weight("default")
    try:
        yield
    finally:
        with torch.no_grad():
            for layer, weight in zip(layers, kept, strict=True):
                layer.get_base_layer().weight.copy_(weight)
