"""Define what every way to compute per-record gradients offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate

import torch
from torch import Tensor, nn

from fedpriv.errors import NotPrivateError
from fedpriv.gradients.mixing import refuse_mixing

Losses = Callable[[nn.Module], Tensor]
Take = Callable[[int, Tensor], None]


class GradientEngine(ABC):
    """Compute per-record gradients of all that is trained in a model.

    Attributes:
        size: P, the number of trained parameters.

    Raises:
        NotPrivateError: a layer mixes records, or nothing is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_mixing(model)
        self._model = model
        self._trained = [p for p in model.parameters() if p.requires_grad]
        if not self._trained:
            raise NotPrivateError("Nothing in the model is trainable: attach an adapter first.")
        self.size = sum(p.numel() for p in self._trained)

    @property
    def device(self) -> torch.device:
        """The device on which the gradients are made."""
        return self._trained[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The gradients' type: float32, or float64 for a float64 model."""
        return torch.float64 if self._trained[0].dtype == torch.float64 else torch.float32

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The first column of each parameter and its number of columns, in `stream`'s order."""
        sizes = [p.numel() for p in self._trained]
        return list(zip(accumulate(sizes, initial=0), sizes, strict=False))

    @abstractmethod
    def stream(self, losses: Losses, batch_size: int, take: Take) -> None:
        """Hand over the gradients of each record's own loss, layer by layer, and keep none.

        Args:
            losses: runs the model and returns one loss per record, (B,); record i's loss
                must depend on record i alone.
            batch_size: B.
            take: called with the first column of a block and a part of it, (B, columns). The sum of
                a block's parts over all calls is the block: a layer that is used twice hands over
                twice, and an unused one never. Columns are in the order of `TrainableVector`; a
                part is a tensor of its own.

        Raises:
            NotPrivateError: a layer was fed something that is not the batch.

        Privacy:
            Every gradient is private. Nothing here may leave the site.
        """

    @abstractmethod
    def set_aside(self) -> AbstractContextManager[None]:
        """Let the model compute by its own layers, and torch make gradients, for a while."""

    @abstractmethod
    def detach(self) -> None:
        """Leave the model as it was."""


def backward(
    model: nn.Module, losses: Losses, batch_size: int, trained: Sequence[nn.Parameter]
) -> list[Tensor | None]:
    """Run a model and backpropagate the sum of its records' losses, leaving every ``.grad`` alone.

    Args:
        trained: the parameters that the engine makes gradients of.

    Returns:
        The gradient of each parameter by autograd itself, summed over the records; None where it
        made none.

    Raises:
        NotPrivateError: there is not one loss per record.

    Privacy:
        Nothing is put into ``.grad``, not even of a parameter that somebody began to train later,
        and nothing is shown to hooks that wait for it: an optimizer takes whatever is there.
    """
    with torch.enable_grad():
        per_record = losses(model)
        if per_record.shape != (batch_size,):
            raise NotPrivateError(
                f"Expected one loss per record, ({batch_size},), got {tuple(per_record.shape)}."
            )
        wanted = [p for p in trained if p.requires_grad]
        summed = torch.autograd.grad(per_record.sum(), wanted, allow_unused=True)
    found = dict(zip(wanted, summed, strict=True))
    return [found.get(p) for p in trained]


def gradients_of(engine: GradientEngine, losses: Losses, batch_size: int) -> Tensor:
    """Compute the gradients of each record's own loss, (B, P), as `GradientEngine.stream` does."""
    found = torch.zeros(batch_size, engine.size, dtype=engine.dtype, device=engine.device)

    def take(start: int, part: Tensor) -> None:
        found[:, start : start + part.shape[1]] += part

    engine.stream(losses, batch_size, take)
    return found


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
