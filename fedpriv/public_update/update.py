"""From a released gradient to new values: post-process it, and move."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.optimizer import Tensors, VectorOptimizer
from fedpriv.public_update.post_processing import Denoise, Found


@dataclass(frozen=True)
class Aggregate:
    """What the sites released in a round, as one gradient.

    Attributes:
        gradient: (P,) float32; before the server's half of a method lifted it, as long as a
            release.
        noise_variance: of the privacy noise in a coordinate of it; public. 0 where it is not the
            same in all of them.
        units: that the sites together were expected to train on in the round.
    """

    gradient: Privatised[Vector]
    noise_variance: float
    units: float


class Update:
    """What becomes of the released gradients of a job.

    Args:
        denoise: applied to every released gradient, if there is one.

    Attributes:
        optimizer: its settings.
        size: P.

    Raises:
        RawValueError: `initial` is raw.

    Privacy:
        Post-processing of released values.
    """

    def __init__(
        self,
        optimizer: OptimizerSection,
        initial: Privatised[Vector],
        denoise: Denoise | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._optimizer = VectorOptimizer(optimizer, initial)
        self._denoise = denoise
        self.size = self._optimizer.size

    @property
    def vector(self) -> Privatised[Vector]:
        """The current values, float32 (P,)."""
        return self._optimizer.vector

    @property
    def denoised(self) -> Found | None:
        """What was found in the last gradient; None without denoising."""
        return None if self._denoise is None else self._denoise.found

    def step(self, released: Aggregate, *, lr: float) -> Privatised[Vector]:
        """Move along a released gradient, and return the new values.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
        """
        gradient = released.gradient
        if self._denoise is not None:
            gradient = self._denoise(gradient, released.noise_variance)
        return self._optimizer.step(gradient, lr=lr)

    def state(self) -> Privatised[Tensors]:
        """Everything needed to go on later, as named tensors. Good until the next step."""
        return self._optimizer.state()

    def start_at(self, vector: Privatised[Vector]) -> None:
        """Begin anew from these values, (P,).

        Raises:
            RawValueError: they are raw.
        """
        self._optimizer.start_at(vector)

    def restore(self, state: Privatised[Tensors]) -> None:
        """Continue from what `state` returned.

        Raises:
            RawValueError: the state is raw.
        """
        self._optimizer.restore(state)
