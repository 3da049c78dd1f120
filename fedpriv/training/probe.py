"""Try on random tokens whether a record's gradient is a function of that record alone."""

from __future__ import annotations

import torch

from fedpriv.data.batch import Batch
from fedpriv.errors import NotPrivateError
from fedpriv.training.random_batch import random_batch
from fedpriv.training.worker import Worker

LONGEST = 1024
# Relative difference that rounding alone may make between a gradient alone and in a batch.
TOLERANCE = {"float64": 1e-8, "float32": 1e-4, "mixed": 5e-2, "bfloat16": 5e-2}


def probe_independence(worker: Worker) -> None:
    """Compare the gradients of a batch with those of its records alone, and after a longer record.

    Catches what `refuse_mixing` does not know by name: a layer that mixes records, and one
    that remembers what it has seen. The tokens are public randomness, never records.

    Raises:
        NotPrivateError: they differ.
    """

    gradients = worker.record_gradients
    batch = _three_records(worker)
    parts = [slice(i, i + 1) for i in range(3)]
    original = worker.vector.read()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(worker.vector.size, generator=generator) * 0.02
    worker.vector.write(original + noise.numpy())  # a fresh lora_B is 0 and hides errors
    together = gradients(batch)
    alone = torch.cat(
        [
            gradients(Batch(batch.input_ids[i], batch.attention_mask[i], batch.labels[i]))
            for i in parts
        ]
    )
    gradients(_long_record(worker))
    again = gradients(batch)
    worker.vector.write(original)

    scale = alone.norm(dim=1).max()
    error = float((together - alone).norm(dim=1).max() / scale)
    if worker.device == "cpu" and not torch.equal(together, again):
        error = float("inf")
    error = max(error, float((together - again).norm(dim=1).max() / scale))
    if not error <= TOLERANCE[worker.recipe.compute.dtype]:
        raise NotPrivateError(
            f"A record's gradient changes with the other records of its batch, or those before"
            f" it (relative difference {error:.1e}), so this {worker.model.config.model_type}"
            " can't be trained privately."
        )


def _three_records(worker: Worker) -> Batch:
    """The first one padded to its double."""
    mask = torch.ones(3, min(12, worker.recipe.model.max_length), dtype=torch.int64)
    mask[0, mask.shape[1] // 2 :] = 0
    return random_batch(worker, mask, seed=0)


def _long_record(worker: Worker) -> Batch:
    """As long as any may be, up to LONGEST."""
    length = min(worker.recipe.model.max_length, LONGEST)
    return random_batch(worker, torch.ones(1, length, dtype=torch.int64), seed=1)
