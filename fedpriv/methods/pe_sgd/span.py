"""Compute the gradients of a synthetic set at some values, and write other gradients in them.

For an adapter of P = 10 million parameters, N = 200 gradients are 8 GB. Where that is more than a
share of the device's memory, they are kept in the machine's own memory, and while other gradients
are made, each layer's block is taken to the device when that layer's turn comes. What is held there
then is one block, and never a row of P values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedpriv import memory
from fedpriv.data.batch import Batch
from fedpriv.data.encode import Example
from fedpriv.gradients.engine import GradientEngine
from fedpriv.methods.pe_sgd.projection import Projection
from fedpriv.models.vector import Vector
from fedpriv.plain_training.public_records import batches
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.worker import Worker

SPAN = "span"  # its key at a worker
SHARE = 8  # gradients that take more than one in so many of the device's bytes stay off it


class Span:
    """G (N, P): the gradients of N public records' own losses, at the values it was made with.

    Args:
        records: None for one without a token to predict, whose gradient is 0.
        ridge: see `Projection`.

    Attributes:
        size: N.
        gram: (N, N) float64, G Gᵀ.
        projection: the projection onto them.

    Privacy:
        Made of public records and released values alone; `products` are private, like the gradients
        they are made of.
    """

    def __init__(
        self, worker: Worker, records: Sequence[Example | None], parameters: Vector, ridge: float
    ) -> None:
        self._made_of = records, parameters.copy(), ridge
        self.size, self._engine = len(records), worker.gradients
        size, engine = self.size, self._engine
        worker.vector.write(parameters)
        home = _home(engine, size)
        self._blocks = {  # first column → (N, columns)
            start: torch.zeros(size, columns, dtype=engine.dtype, device=home)
            for start, columns in engine.blocks
        }
        for losses, members in batches(worker, records):

            def take(start: int, part: Tensor, members: list[int] = members) -> None:
                block = self._blocks[start]
                block[members] += part.to(block.device)  # each row once: no order to add in

            engine.stream(losses, len(members), take)
        self.gram = torch.zeros(size, size, dtype=torch.float64, device=engine.device)
        for block in self._blocks.values():
            block = block.to(engine.device)
            self.gram += (block @ block.T).double()
        self.projection = Projection(self.gram, ridge)

    def is_of(self, records: Sequence[Example | None], parameters: Vector, ridge: float) -> bool:
        """Tell whether another span of these would be the same."""
        known, values, strength = self._made_of
        return strength == ridge and np.array_equal(values, parameters) and known == records

    def products(self, batch: Batch) -> Tensor:
        """Compute c = H Gᵀ (B, N) float64, of the gradients H (B, P) of each record's own loss.

        It goes a row at a time, from memory of its own: where a row begins in a batch decides how
        it is aligned, and that decides how it is rounded.

        Raises:
            NotPrivateError: as `GradientEngine.stream`.
        """
        engine = self._engine
        total = torch.zeros(len(batch), self.size, dtype=engine.dtype, device=engine.device)

        def take(start: int, part: Tensor) -> None:
            block = self._blocks[start].to(part.device)
            for row, gradient in zip(total, part, strict=True):
                row += block @ gradient.clone()

        engine.stream(partial(record_losses, batch=batch), len(batch), take)
        return total.double()

    def combine(self, coefficients: Tensor) -> Tensor:
        """Compute Gᵀ z (P,) of z (N,), in float64."""
        row = coefficients.double().cpu()[None]  # (1, N)
        found = row.new_empty(1, self._engine.size)
        for start, block in self._blocks.items():
            found[:, start : start + block.shape[1]] = row @ block.to(row)
        return found[0]


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
    """Return a tensor as the vector that is sent and optimised."""
    found: Vector = value.to(torch.float32).cpu().numpy()
    return found


def _home(engine: GradientEngine, size: int) -> torch.device:
    """Choose where gradients are kept: on the device, unless they are large there.

    Privacy:
        Sizes alone decide. How much of a device is free tells of earlier private steps, and
        where a product is computed decides how it is rounded.
    """
    if engine.device.type != "cuda":
        return torch.device("cpu")
    needed = size * engine.size * engine.dtype.itemsize
    there = memory.total(engine.device)
    return engine.device if needed * SHARE <= there else torch.device("cpu")
