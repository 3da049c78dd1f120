"""A filter over rounds: released gradients change slowly, and their noise does not."""

from __future__ import annotations

import numpy as np
import torch

from fedpriv.models.vector import Vector
from fedpriv.privacy.privatised import Privatised, post_process, require_privatised

Tensors = dict[str, torch.Tensor]


class LowPass:
    """m_t = a·m_{t−1} + b·(g_t + g_{t−1}) with b = (1 − a)/2, over what it makes of a constant 1.

    A first-order low-pass filter with its zero at the highest frequency. Unlike momentum alone it
    leaves out what changes sign from round to round, and its first answers are not too small.

    Args:
        pole: a, from 0 (the mean of two gradients) to below 1.

    Privacy:
        Post-processing of released values.

    Source:
        Zhang et al., "DOPPLER: Differentially private optimizers with low-pass filter for privacy
        noise reduction" (arXiv:2408.13460), its bias correction included.
    """

    def __init__(self, pole: float) -> None:
        self._pole, self._share = pole, (1 - pole) / 2
        self._memory: tuple[Privatised[Vector], ...] = ()  # b·g + a·m, (P,); or none yet
        self._gain = self._variance = 0.0  # what memory holds of a constant 1, and of the noise

    def __call__(
        self, gradient: Privatised[Vector], variance: float
    ) -> tuple[Privatised[Vector], float]:
        """The filtered gradient, and the variance of the noise in a coordinate of it.

        Args:
            gradient: (P,) float32.
            variance: of the noise in a coordinate of it, on its own in every round.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
        """
        a, b = np.float32(self._pole), np.float32(self._share)
        gain, noise = self._gain + self._share, self._variance + self._share**2 * variance

        def filtered(value: Vector, *memory: Vector) -> Vector:
            return b * value + memory[0] if memory else b * value

        def remembered(value: Vector, made: Vector) -> Vector:
            return b * value + a * made

        made = post_process(filtered, gradient, *self._memory)
        self._memory = (post_process(remembered, gradient, made),)
        self._gain = self._share + self._pole * gain
        # The noise of this round comes by both ways, b and a·b; what came before, by one.
        fresh = (self._share + self._pole * self._share) ** 2 * variance
        self._variance = fresh + self._pole**2 * self._variance
        return post_process(lambda value: value / np.float32(gain), made), noise / gain**2

    def state(self) -> Privatised[Tensors] | None:
        """What `restore` takes; None before the first gradient."""
        figures = torch.tensor([self._gain, self._variance], dtype=torch.float64)

        def tensors(memory: Vector) -> Tensors:
            return {"memory": torch.from_numpy(memory), "figures": figures}

        return post_process(tensors, *self._memory) if self._memory else None

    def restore(self, state: Privatised[Tensors] | None) -> None:
        """Continue from what `state` returned.

        Raises:
            RawValueError: the state is raw.
        """
        self._memory, self._gain, self._variance = (), 0.0, 0.0
        if state is not None:
            found = require_privatised(state, "state")
            self._memory = (post_process(lambda held: held["memory"].numpy().copy(), state),)
            self._gain, self._variance = found["figures"].tolist()
