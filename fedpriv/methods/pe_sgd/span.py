"""The gradients of a synthetic set at some values, and how other gradients are written in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.methods.pe_sgd.basis import Basis
from fedpriv.methods.pe_sgd.projection import Projection
from fedpriv.models.vector import Vector
from fedpriv.plain_training.public_records import batches
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.worker import Worker

SPAN = "span"  # at a worker


class Span:
    """What the gradients of some public records span, at the values that it was made with.

    Args:
        records: None for one without a token to predict, whose gradient is 0.
        ridge: see `Projection`.

    Attributes:
        basis: G (N, P).
        projection: the projection onto it.
    """

    def __init__(
        self, worker: Worker, records: Sequence[Example | None], parameters: Vector, ridge: float
    ) -> None:
        self._made_of = records, parameters.copy(), ridge
        worker.vector.write(parameters)
        self.basis = Basis(worker.gradients, batches(worker, records), len(records))
        self.projection = Projection(self.basis.gram, ridge)

    def is_of(self, records: Sequence[Example | None], parameters: Vector, ridge: float) -> bool:
        """Tell whether another span of these would be the same."""
        known, values, strength = self._made_of
        return strength == ridge and np.array_equal(values, parameters) and known == records

    def products(self, batch: Batch) -> Tensor:
        """Multiply the gradients of a batch with those of the set, (B, N) float64."""
        losses = partial(record_losses, batch=batch)
        return self.basis.products(losses, len(batch)).double()

    def combine(self, coefficients: Tensor) -> Vector:
        """Return the gradient (P,) of coefficients (N,)."""
        return as_vector(self.basis.combine(coefficients))


def span_of(
    worker: Worker, records: Sequence[Example | None], parameters: Vector, ridge: float
) -> Span:
    """Make a `Span`, or return the last one that this worker made, if it is the same.

    In a simulation all sites that a worker serves ask for the same one in a round.

    Privacy:
        Public records and released values alone; no site sees anything of another.
    """
    found = worker.public.get(SPAN)
    if isinstance(found, Span) and found.is_of(records, parameters, ridge):
        return found
    del found
    worker.public.pop(SPAN, None)  # its memory is free before the next one is made
    made = worker.public[SPAN] = Span(worker, records, parameters, ridge)
    return made


def as_vector(value: Tensor) -> Vector:
    """Return it as it is sent and optimised."""
    found: Vector = value.to(torch.float32).cpu().numpy()
    return found
