"""The optimiser of the trained vector. It sees privatised gradients only, so it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpriv.config.job import OptimizerSection
from fedpriv.privacy.privatised import Privatised, post_process, require_privatised

if TYPE_CHECKING:
    import torch

    from fedpriv.models.vector import Vector

Tensors = dict[str, "torch.Tensor"]


class VectorOptimizer:
    """A torch optimiser over one flat parameter.

    Attributes:
        vector: the current values, float32 (P,): public at first, privatised afterwards.

    Raises:
        RawValueError: `initial` is raw.
    """

    def __init__(self, settings: OptimizerSection, initial: Privatised[Vector]) -> None:
        import torch

        start = require_privatised(initial, "initial")
        self.vector = initial
        self._parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
        self._optimizer: torch.optim.Optimizer
        if settings.name == "sgd":
            self._optimizer = torch.optim.SGD(
                [self._parameter],
                lr=settings.lr,
                momentum=settings.momentum,
                weight_decay=settings.weight_decay,
            )
        else:
            self._optimizer = torch.optim.AdamW(
                [self._parameter],
                lr=settings.lr,
                betas=settings.betas,
                weight_decay=settings.weight_decay,
            )

    @property
    def size(self) -> int:
        """P, the number of values."""
        return self._parameter.numel()

    def step(self, gradient: Privatised[Vector]) -> Privatised[Vector]:
        """Move along a released gradient (P,), and return the new values.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.

        Privacy:
            Post-processing of released values.
        """
        require_privatised(gradient, "gradient")
        self.vector = post_process(self._moved, self.vector, gradient)
        return self.vector

    def _moved(self, vector: Vector, gradient: Vector) -> Vector:
        import torch

        self._parameter.data = torch.from_numpy(vector.copy())
        self._parameter.grad = torch.from_numpy(gradient.copy())
        self._optimizer.step()
        return self._parameter.detach().numpy()

    def state(self) -> Privatised[Tensors]:
        """Everything needed to go on later, as named tensors."""
        return post_process(self._tensors, self.vector)

    def _tensors(self, vector: Vector) -> Tensors:
        import torch

        found: dict[str, Any] = self._optimizer.state.get(self._parameter, {})
        tensors = {
            f"optimizer.{key}": torch.as_tensor(value)
            for key, value in found.items()
            if value is not None
        }
        return {"vector": torch.from_numpy(vector.copy()), **tensors}

    def restore(self, state: Privatised[Tensors]) -> None:
        """Continue from what `state` returned.

        Raises:
            RawValueError: the state is raw.
        """
        tensors = require_privatised(state, "state")
        self.vector = post_process(_vector, state)
        self._optimizer.state[self._parameter] = {
            key.removeprefix("optimizer."): value.clone()
            for key, value in tensors.items()
            if key.startswith("optimizer.")
        }


def _vector(tensors: Tensors) -> Vector:
    return tensors["vector"].numpy().copy()
