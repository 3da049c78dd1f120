"""The gradients that span a projection, held by layer.

For an adapter of P = 10 million parameters, N = 200 gradients are 8 GB. Where that is more than a
share of what the device has free, they are kept in the machine's own memory, and while other
gradients are made, each layer's block is taken to the device when that layer's turn comes. What is
held there then is one block, and never a row of P values.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from fedpriv.gradients.engine import GradientEngine, Losses

Batches = Iterable[tuple[Losses, list[int]]]
SHARE = 4  # a basis larger than one in so many of the device's free bytes stays off it


class Basis:
    """G (N, P): the gradients of N records' own losses, at the values the model has now.

    Args:
        engine: makes them, and whatever is compared with them.
        batches: losses of a few records, and which of the N they are.
        size: N.
        sketch: compare by this many sums of random signs instead of all P values; 0: exactly.
        seed: of the signs, public.

    Attributes:
        size: N.
        gram: (N, N) float64, G Gᵀ, or its sketch.

    Raises:
        ValueError: N or the sketch is more than P.

    Privacy:
        Of public records and released values alone; `products` are private, like the gradients
        they are made of.

    Source:
        The sketch: Charikar, Chen & Farach-Colton, "Finding frequent items in data streams", 2002;
        its inner products are right on average, and off by √(2/k) of the norms.
    """

    def __init__(
        self,
        engine: GradientEngine,
        batches: Batches,
        size: int,
        *,
        sketch: int = 0,
        seed: int = 0,
    ) -> None:
        for name, count in (("size", size), ("sketch", sketch)):
            if count > engine.size:
                raise ValueError(f"Expected {name}={count} of at most the {engine.size} trained.")
        self.size = size
        self._engine, self._sketch, self._seed = engine, sketch, seed
        home = _home(engine, size)
        self._blocks: dict[int, Tensor] = {}  # first column → (N, columns); none with a sketch
        self._sketched: Tensor | None = None  # (N, k)
        if sketch:
            self._sketched = torch.zeros(size, sketch, dtype=engine.dtype, device=engine.device)
        else:
            self._blocks = {
                start: torch.zeros(size, columns, dtype=engine.dtype, device=home)
                for start, columns in engine.blocks
            }
        for losses, members in batches:
            self._hold(losses, members)
        self.gram = self._gram()

    def _hold(self, losses: Losses, members: list[int]) -> None:
        sketched = self._sketched

        def take(start: int, part: Tensor) -> None:
            if sketched is None:
                block = self._blocks[start]
                index = torch.tensor(members, device=block.device)
                block.index_add_(0, index, part.to(block.device))
            else:
                own = sketched.new_zeros(len(members), self._sketch)
                self._add_sketch(own, start, part)
                sketched.index_add_(0, torch.tensor(members, device=own.device), own)

        self._engine.stream(losses, len(members), take)

    def products(self, losses: Losses, batch_size: int) -> Tensor:
        """c = H Gᵀ (B, N), of the gradients H (B, P) of each record's own loss.

        A row at a time, from memory of its own: where a row begins in a batch decides how it is
        aligned, and that how it is rounded.

        Raises:
            NotPrivateError: as `GradientEngine.stream`.
        """
        engine = self._engine
        if self._sketched is not None:
            total = torch.zeros(batch_size, self._sketch, dtype=engine.dtype, device=engine.device)
        else:
            total = torch.zeros(batch_size, self.size, dtype=engine.dtype, device=engine.device)

        def take(start: int, part: Tensor) -> None:
            if self._sketched is not None:
                self._add_sketch(total, start, part)
            else:
                block = self._blocks[start].to(part.device)
                for row, gradient in zip(total, part, strict=True):
                    row += block @ gradient.clone()

        engine.stream(losses, batch_size, take)
        if self._sketched is None:
            return total
        return torch.stack([self._sketched @ row.clone() for row in total])

    def products_of(self, rows: Tensor) -> Tensor:
        """c = H Gᵀ (B, N) of gradients H (B, P) in the order of `GradientEngine.rows`.

        Without a sketch, as are the two below.
        """
        total = rows.new_zeros(len(rows), self.size)
        for start, block in self._blocks.items():
            total += rows[:, start : start + block.shape[1]] @ block.to(rows).T
        return total

    def combinations(self, coefficients: Tensor) -> Tensor:
        """Z G (B, P) of coefficients Z (B, N), in the same order."""
        found = coefficients.new_empty(len(coefficients), self._engine.size)
        for start, block in self._blocks.items():
            found[:, start : start + block.shape[1]] = coefficients @ block.to(coefficients)
        return found

    def of(self, gradient: Tensor) -> Tensor:
        """c = G h (N,) of one gradient h (P,), in the order of `TrainableVector`, in float64."""
        return self.products_of(self._engine.ordered(gradient.double())[None])[0]

    def combine(self, coefficients: Tensor) -> Tensor:
        """Gᵀ z (P,) of z (N,), in the order of `TrainableVector`, in float64."""
        return self._engine.natural(self.combinations(coefficients.double().cpu()[None])[0])

    def _gram(self) -> Tensor:
        device = self._engine.device
        gram = torch.zeros(self.size, self.size, dtype=torch.float64, device=device)
        blocks = [self._sketched] if self._sketched is not None else self._blocks.values()
        for block in blocks:
            block = block.to(device)
            gram += (block @ block.T).double()
        return gram

    def _add_sketch(self, total: Tensor, start: int, part: Tensor) -> None:
        """Every column, with its sign, to the one of k sums that it belongs to."""
        seed = random.Random(f"{self._seed} {start}").getrandbits(32)  # torch takes no more
        generator = torch.Generator().manual_seed(seed)
        columns = part.shape[1]
        bucket = torch.randint(self._sketch, (columns,), generator=generator)
        sign = torch.randint(2, (columns,), generator=generator) * 2 - 1
        total.index_add_(1, bucket.to(part.device), part * sign.to(part))


def weighted_gradient(engine: GradientEngine, batches: Batches, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ ∇ℓᵢ = Gᵀ w (P,), in the order of `TrainableVector`, in float64, and G never held.

    Args:
        batches: as of `Basis`.
        weights: (N,).

    Privacy:
        Post-processing, where the weights were released and the records are public.
    """
    flat = torch.zeros(engine.size, dtype=torch.float64, device=engine.device)
    for losses, members in batches:
        chosen = weights.double()[members].to(engine.device)

        def take(start: int, part: Tensor, chosen: Tensor = chosen) -> None:
            flat[start : start + part.shape[1]] += chosen @ part.double()

        engine.stream(losses, len(members), take)
    return engine.natural(flat)


def _home(engine: GradientEngine, size: int) -> torch.device:
    """Where a basis is kept: on the device, unless it is large there."""
    if engine.device.type != "cuda":
        return torch.device("cpu")
    needed = size * engine.size * engine.dtype.itemsize
    free, _ = torch.cuda.mem_get_info(engine.device)
    return engine.device if needed * SHARE <= free else torch.device("cpu")
