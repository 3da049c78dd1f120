"""What becomes of a federated adapter when a site goes on with its own records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fedpriv.config.personal import PersonalSection
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal.training import Epoch, train_alone
from fedpriv.training.scores import Scores, score
from fedpriv.training.worker import Worker

SHARES = (0.25, 0.5, 0.75)


def personalise(
    worker: Worker,
    federated: Vector,
    records: Sequence[Example],
    validation: Sequence[Example],
    settings: PersonalSection,
    *,
    seed: int = 0,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> Callable[[Sequence[Example]], Scores]:
    """Train, and give what scores the model that came of it."""
    if settings.form == "second":
        start = fresh_adapter(worker, federated)
        with in_the_base(worker, federated):
            made = train_alone(worker, start, records, validation, settings, seed=seed, told=told)

        def of_both(examples: Sequence[Example]) -> Scores:
            with in_the_base(worker, federated):
                return score(worker, examples, made.values)

        return of_both
    made = train_alone(worker, federated, records, validation, settings, seed=seed, told=told)
    values = made.values
    if settings.interpolate:
        tried = [federated + share * (made.values - federated) for share in SHARES]
        tried = [values, *(one.astype(np.float32) for one in tried)]
        values = min(tried, key=lambda one: score(worker, validation, one).eval_loss)
    return lambda examples: score(worker, examples, values)


def fresh_adapter(worker: Worker, federated: Vector) -> Vector:
    """The first values of an adapter, with what else is trained as it is in `federated`."""
    start, begin = worker.initial.copy(), 0
    for name, shape in zip(worker.vector.names, worker.vector.shapes, strict=True):
        size = int(np.prod(shape))
        if ".lora_" not in name:
            start[begin : begin + size] = federated[begin : begin + size]
        begin += size
    return start


@contextmanager
def in_the_base(worker: Worker, federated: Vector) -> Iterator[None]:
    """Add an adapter's product to the frozen weights, for the time of a `with` block."""
    worker.vector.write(federated)
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
