"""Gradients of public records, such as those of a synthetic set. They cost no privacy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from fedpriv.data.batch import buckets
from fedpriv.data.encode import Example
from fedpriv.gradients.engine import Batches, weighted_gradient
from fedpriv.models.vector import Vector
from fedpriv.private_training.microbatch import public_microbatch
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.unit_sum import chunks
from fedpriv.private_training.worker import Worker


def batches(worker: Worker, records: Sequence[Example | None]) -> Batches:
    """Yield the losses of one microbatch of records at a time, and which records they are.

    How many are computed together decides the last bits of their gradients, which are public. So
    the number is `public_microbatch`, and not what memory allowed for private records.

    Args:
        records: None for a record without a token to predict. Its gradient is 0, and it is in no
            batch.
    """
    present = [i for i, record in enumerate(records) if record is not None]
    found = [record for record in records if record is not None]
    for length, members in buckets(found, worker.recipe.model.max_length).items():
        for chunk in chunks(members, public_microbatch(worker)):
            batch = worker.batch([found[i] for i in chunk], length)
            yield partial(record_losses, batch=batch), [present[i] for i in chunk]


def mean_gradient(worker: Worker, records: Sequence[Example | None], parameters: Vector) -> Vector:
    """Return the mean gradient of these records at these values, (P,)."""
    worker.vector.write(parameters)
    return mean_of_gradients(worker, batches(worker, records), len(records))


def mean_of_gradients(worker: Worker, losses: Batches, count: int) -> Vector:
    """Return the mean gradient (P,) of `count` records, at the values that were last written."""
    weights = torch.full((count,), 1 / count)
    found: Vector = weighted_gradient(worker.gradients, losses, weights).float().cpu().numpy()
    return found
