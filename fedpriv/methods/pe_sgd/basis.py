"""The gradients that span a projection, held by layer.

For an adapter of P = 10 million parameters, N = 200 gradients are 8 GB. Where that is more than a
share of the device's memory, they are kept in the machine's own, and while other gradients are
made, each layer's block is taken to the device when that layer's turn comes. What is held there
then is one block, and never a row of P values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedpriv import memory
from fedpriv.gradients.engine import Batches, GradientEngine, Losses

SHARE = 8  # a basis larger than one in so many of the device's bytes stays off it


class Basis:
    """G (N, P): the gradients of N records' own losses, at the values the model has now.

    Args:
        engine: makes them, and whatever is compared with them.
        batches: losses of a few records, and which of the N they are.
        size: N.

    Attributes:
        size: N.
        gram: (N, N) float64, G Gᵀ.

    Raises:
        ValueError: N is more than P.

    Privacy:
        Of public records and released values alone; `products` are private, like the gradients
        they are made of.
    """

    def __init__(self, engine: GradientEngine, batches: Batches, size: int) -> None:
        if size > engine.size:
            raise ValueError(f"Expected size={size} of at most the {engine.size} trained.")
        self.size, self._engine = size, engine
        home = _home(engine, size)
        self._blocks = {  # first column → (N, columns)
            start: torch.zeros(size, columns, dtype=engine.dtype, device=home)
            for start, columns in engine.blocks
        }
        for losses, members in batches:

            def take(start: int, part: Tensor, members: list[int] = members) -> None:
                block = self._blocks[start]
                block[members] += part.to(block.device)  # each row once: no order to add in

            engine.stream(losses, len(members), take)
        self.gram = torch.zeros(size, size, dtype=torch.float64, device=engine.device)
        for block in self._blocks.values():
            block = block.to(engine.device)
            self.gram += (block @ block.T).double()

    def products(self, losses: Losses, batch_size: int) -> Tensor:
        """Compute c = H Gᵀ (B, N), of the gradients H (B, P) of each record's own loss.

        It goes a row at a time, from memory of its own: where a row begins in a batch decides how
        it is aligned, and that how it is rounded.

        Raises:
            NotPrivateError: as `GradientEngine.stream`.
        """
        engine = self._engine
        total = torch.zeros(batch_size, self.size, dtype=engine.dtype, device=engine.device)

        def take(start: int, part: Tensor) -> None:
            block = self._blocks[start].to(part.device)
            for row, gradient in zip(total, part, strict=True):
                row += block @ gradient.clone()

        engine.stream(losses, batch_size, take)
        return total

    def combine(self, coefficients: Tensor) -> Tensor:
        """Compute Gᵀ z (P,) of z (N,), in float64."""
        row = coefficients.double().cpu()[None]  # (1, N)
        found = row.new_empty(1, self._engine.size)
        for start, block in self._blocks.items():
            found[:, start : start + block.shape[1]] = row @ block.to(row)
        return found[0]


def _home(engine: GradientEngine, size: int) -> torch.device:
    """Choose where a basis is kept: on the device, unless it is large there.

    Privacy:
        Sizes alone decide. How much of a device is free tells of earlier private steps, and
        where a product is computed decides how it is rounded.
    """
    if engine.device.type != "cuda":
        return torch.device("cpu")
    needed = size * engine.size * engine.dtype.itemsize
    there = memory.total(engine.device)
    return engine.device if needed * SHARE <= there else torch.device("cpu")
