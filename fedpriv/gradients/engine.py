"""What any way to compute per-record gradients offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from fedpriv.errors import NotPrivateError

Losses = Callable[[nn.Module], Tensor]
Take = Callable[[int, Tensor], None]


class GradientEngine(Protocol):
    """Rows of per-record gradients of whatever in a model is trained.

    Attributes:
        size: P, the number of trained parameters.
    """

    size: int

    @property
    def device(self) -> torch.device:
        """Where the rows are made."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows: float32, or float64 for a float64 model."""
        ...

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The first column of each block, and how many it has, as `stream` hands them over."""
        ...

    def rows(self, losses: Losses, batch_size: int) -> Tensor:
        """The gradients of each record's own loss.

        Args:
            losses: runs the model and returns one loss per record, (B,); record i's loss
                must depend on record i alone.
            batch_size: B.

        Returns:
            (B, P) in the engine's own column order (see `natural`), valid until the next
            call; float32, or float64 for a float64 model.

        Raises:
            NotPrivateError: a layer was fed something that is not the batch.

        Privacy:
            Every row is private. Nothing here may leave the site.
        """
        ...

    def stream(self, losses: Losses, batch_size: int, take: Take) -> None:
        """Hand over the gradients of each record's own loss, layer by layer, and keep none.

        Args:
            losses, batch_size: as of `rows`.
            take: called with the first column of a block and a part of it, (B, columns), of
                which the sum over all calls is the block: a layer that is used twice hands over
                twice, and one that is not used, never.

        Raises:
            NotPrivateError: a layer was fed something that is not the batch.

        Privacy:
            Every row is private. Nothing here may leave the site.
        """
        ...

    def natural(self, vector: Tensor) -> Tensor:
        """A vector (P,) in the engine's order, in the order of `TrainableVector`."""
        ...

    def ordered(self, vector: Tensor) -> Tensor:
        """A vector (P,) in the order of `TrainableVector`, in the engine's: undoes `natural`."""
        ...

    def detach(self) -> None:
        """Leave the model as it was."""
        ...


def backward(model: nn.Module, losses: Losses, batch_size: int) -> None:
    """Run a model and go back from the sum of its records' losses.

    Raises:
        NotPrivateError: there is not one loss per record.
    """
    with torch.enable_grad():
        per_record = losses(model)
        if per_record.shape != (batch_size,):
            raise NotPrivateError(
                f"Expected one loss per record, ({batch_size},), got {tuple(per_record.shape)}."
            )
        per_record.sum().backward()  # type: ignore[no-untyped-call]


def gathered(engine: GradientEngine, losses: Losses, batch_size: int) -> Tensor:
    """What `stream` hands over, as rows (B, P) of their own."""
    rows = torch.zeros(batch_size, engine.size, dtype=engine.dtype, device=engine.device)

    def take(start: int, part: Tensor) -> None:
        rows[:, start : start + part.shape[1]] += part

    engine.stream(losses, batch_size, take)
    return rows


def row_type(weight: Tensor) -> torch.dtype:
    """Of the rows of gradients by a trained parameter: float32, or float64 by a float64 one."""
    return torch.float64 if weight.dtype == torch.float64 else torch.float32
