"""Hold what is trained as one flat vector: the form in which it travels and is optimised."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.errors import ProtocolError
from fedpriv.files import canonical_json, sha256

if TYPE_CHECKING:
    import torch
    from torch import nn

Vector = np.ndarray[Any, np.dtype[np.float32]]


class TrainableVector:
    """The trainable parameters of a model in their order, as float32 (P,).

    Attributes:
        names, shapes: those of the parameters, in order.
        size: P.
        digest: the digest of names and shapes, and of what else an adapter holds, so that two
            parties know that they mean the same vector of the same model.
    """

    def __init__(self, model: nn.Module) -> None:
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.names = [name for name, _ in trained]
        self.shapes = [tuple(p.shape) for _, p in trained]
        self.size = sum(p.numel() for _, p in trained)
        layout: list[list[object]] = [
            [name, list(shape)] for name, shape in zip(self.names, self.shapes, strict=True)
        ]
        for name, p in model.named_parameters():
            if not p.requires_grad and ".lora_" in name:
                held = p.detach().float().cpu().contiguous().numpy().tobytes()
                layout.append([name, hashlib.sha256(held).hexdigest()])
        self.digest = sha256(canonical_json(layout))
        self._parameters: list[torch.nn.Parameter] = [p for _, p in trained]

    def read(self) -> Vector:
        """Return the model's current values."""
        import torch

        flat = torch.cat([p.detach().reshape(-1).float().cpu() for p in self._parameters])
        return flat.numpy()

    def write(self, vector: Vector) -> None:
        """Put `vector` into the model.

        Raises:
            ProtocolError: wrong shape or type, or a value that is not finite.
        """
        import torch

        with torch.no_grad():
            for p, part in self._parts(vector):
                p.copy_(part)

    def add_gradient(self, gradient: Vector) -> None:
        """Add a gradient (P,) to what the parameters have in ``.grad``, as `backward` does."""
        for p, part in self._parts(gradient):
            own = part.to(p.device, p.dtype)
            p.grad = own if p.grad is None else p.grad + own

    def _parts(self, vector: Vector) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """Yield each parameter with its part of a vector, in the parameter's shape."""
        import torch

        check_vector(vector, self.size)
        start = 0
        for p in self._parameters:
            part = torch.from_numpy(vector[start : start + p.numel()].copy())
            yield p, part.view(p.shape)
            start += p.numel()


def check_vector(vector: np.ndarray[Any, np.dtype[Any]], size: int) -> None:
    """Refuse anything but a finite float32 vector of `size` values.

    Raises:
        ProtocolError: it is something else. The error says what.
    """
    if vector.shape != (size,) or vector.dtype != np.float32:
        raise ProtocolError(
            f"Expected a float32 vector of {size} values, got {vector.dtype} {vector.shape}."
        )
    if not np.isfinite(vector).all():
        raise ProtocolError("Expected finite values in the vector.")
