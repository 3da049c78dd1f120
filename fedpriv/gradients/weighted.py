"""The weighted sum of the gradients of public records, with no more than one layer's held."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedpriv.gradients.engine import GradientEngine, Losses

Batches = Iterable[tuple[Losses, list[int]]]


def weighted_gradient(engine: GradientEngine, batches: Batches, weights: Tensor) -> Tensor:
    """Return Σᵢ wᵢ ∇ℓᵢ = Gᵀ w (P,), in the order of `TrainableVector`, in float64; never hold G.

    Args:
        batches: losses of a few records, and which of the N they are.
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
    return flat
