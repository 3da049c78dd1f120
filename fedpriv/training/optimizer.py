"""The optimiser of the trained vector. It sees privatised gradients only, so it costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpriv.config.job import OptimizerSection

if TYPE_CHECKING:
    import torch

    from fedpriv.models.vector import Vector


class VectorOptimizer:
    """A torch optimiser over one flat parameter.

    Attributes:
        vector: the current values, float32 (P,).
    """

    def __init__(self, settings: OptimizerSection, initial: Vector) -> None:
        import torch

        self._parameter = torch.nn.Parameter(torch.from_numpy(initial.copy()))
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

    @property
    def vector(self) -> Vector:
        return self._parameter.detach().numpy().copy()

    def step(self, gradient: Vector) -> Vector:
        """Move along a released gradient (P,), and return the new values."""
        import torch

        self._parameter.grad = torch.from_numpy(gradient.copy())
        self._optimizer.step()
        return self.vector

    def state(self) -> dict[str, torch.Tensor]:
        """Everything needed to go on later, as named tensors."""
        import torch

        found: dict[str, Any] = self._optimizer.state.get(self._parameter, {})
        tensors = {
            f"optimizer.{key}": torch.as_tensor(value)
            for key, value in found.items()
            if value is not None
        }
        return {"vector": self._parameter.detach().clone(), **tensors}

    def restore(self, state: dict[str, torch.Tensor]) -> None:
        """Continue from what `state` returned."""
        import torch

        with torch.no_grad():
            self._parameter.copy_(state["vector"])
        self._optimizer.state[self._parameter] = {
            key.removeprefix("optimizer."): value.clone()
            for key, value in state.items()
            if key.startswith("optimizer.")
        }
