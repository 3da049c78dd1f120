"""The server's update, and the mean of its values over the last rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import Aggregate, Tensors, Update

if TYPE_CHECKING:
    from fedpriv.public_update.denoise import Denoiser

MEAN, COUNT = "mean", "mean over"  # names of tensors in the state
Mean = np.ndarray[Any, np.dtype[np.float64]]


class AveragedUpdate(Update):
    """Move along the releases of a job, and average the values after its last rounds.

    Args:
        settings, initial, denoise: see `Update`.
        after: the round after which values are averaged; None for no mean.

    Privacy:
        Post-processing of released values.

    Source:
        Polyak and Juditsky 1992, "Acceleration of Stochastic Approximation by Averaging".
    """

    def __init__(
        self,
        settings: OptimizerSection,
        initial: Privatised[Vector],
        denoise: Denoiser | None = None,
        after: int | None = None,
    ) -> None:
        super().__init__(settings, initial, denoise)
        self._after, self._count = after, 0
        self._mean: Privatised[Mean] | None = None

    @property
    def adapter(self) -> Privatised[Vector]:
        """What the job hands over: the mean, or as long as there is none the present values."""
        if self._mean is None:
            return self.vector
        return post_process(lambda mean: mean.astype(np.float32), self._mean)

    def take(self, number: int, released: Aggregate, *, lr: float) -> None:
        """Move along the released gradient of a round.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
        """
        moved = self.move(released, lr=lr)
        if self._after is not None and number > self._after:
            self._count += 1
            before = moved if self._mean is None else self._mean
            self._mean = post_process(_mean_of(self._count), before, moved)

    def state(self) -> Privatised[Tensors]:
        """Return everything needed to continue, see `VectorOptimizer.state`."""
        state = super().state()
        return state if self._mean is None else post_process(self._with_mean, state, self._mean)

    def _with_mean(self, state: Tensors, mean: Mean) -> Tensors:
        return {**state, MEAN: torch.from_numpy(mean), COUNT: torch.tensor(self._count)}

    def restore(self, state: Privatised[Tensors]) -> None:
        """Continue from what `state` returned, see `VectorOptimizer.restore`."""
        super().restore(state)
        self._mean, self._count = None, int(state.value.get(COUNT, 0))
        if self._count:
            self._mean = post_process(lambda tensors: tensors[MEAN].numpy().copy(), state)


def adapter_of(tensors: Tensors) -> Vector:
    """Return the adapter (P,) in what `AveragedUpdate.state` gave."""
    return tensors.get(MEAN, tensors["vector"]).numpy().astype(np.float32)


def _mean_of(count: int) -> Callable[[Any, Vector], Mean]:
    """Return what takes a value into the mean of those before, `count` values in all."""

    def mean(before: Any, value: Vector) -> Mean:
        old = np.asarray(before, np.float64)
        return old + (value - old) / count

    return mean
