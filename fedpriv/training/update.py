"""From a released gradient to new values: filter it over rounds, denoise it, take a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.config.job import DenoiseSection, OptimizerSection
from fedpriv.privacy.privatised import Privatised, post_process
from fedpriv.training.optimizer import Tensors, VectorOptimizer

if TYPE_CHECKING:
    from fedpriv.models.vector import Vector

_FILTER = "low_pass."  # of the names in a checkpoint


@dataclass(frozen=True)
class Found:
    """Matrices of a gradient in which a signal was found.

    Attributes:
        on: how many.
        matrices: of how many.
        by_chance: how many it would be on average, were there nothing but noise.
    """

    on: int
    matrices: int
    by_chance: float


class Update:
    """What becomes of the released gradients of a job.

    Attributes:
        optimizer: its settings.
        size: P.
        denoised: what the denoiser found in the last step; None without one.

    Raises:
        RawValueError: `initial` is raw.

    Privacy:
        Post-processing of released values.
    """

    def __init__(
        self,
        optimizer: OptimizerSection,
        denoise: DenoiseSection,
        initial: Privatised[Vector],
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        from fedpriv.gradients.denoise import Denoiser
        from fedpriv.gradients.low_pass import LowPass

        self.optimizer = optimizer
        self._optimizer = VectorOptimizer(optimizer, initial)
        self._filter = LowPass(denoise.low_pass) if denoise.low_pass else None
        self._denoiser = Denoiser(shapes, denoise) if denoise.where != "off" else None
        self.denoised: Found | None = None
        self.size = self._optimizer.size

    @property
    def vector(self) -> Privatised[Vector]:
        """The current values, float32 (P,)."""
        return self._optimizer.vector

    def step(
        self, gradient: Privatised[Vector], *, lr: float, noise_variance: float
    ) -> Privatised[Vector]:
        """Move along a released gradient (P,), and return the new values.

        Args:
            noise_variance: of the privacy noise in a coordinate of the gradient; public.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
        """
        if self._filter is not None:
            gradient, noise_variance = self._filter(gradient, noise_variance)
        if self._denoiser is not None:
            found = self._denoiser(gradient, noise_variance**0.5)
            denoiser = self._denoiser
            self.denoised = Found(found.value.on, denoiser.matrices, denoiser.by_chance)
            gradient = post_process(lambda denoised: denoised.vector, found)
        return self._optimizer.step(gradient, lr=lr, noise_variance=noise_variance)

    def state(self) -> Privatised[Tensors]:
        """Everything needed to go on later, as named tensors. Good until the next step."""
        if self._filter is None:
            return self._optimizer.state()

        def both(ours: Tensors, its: Tensors) -> Tensors:
            return {**ours, **{_FILTER + name: value for name, value in its.items()}}

        return post_process(both, self._optimizer.state(), self._filter.state())

    def restore(self, state: Privatised[Tensors]) -> None:
        """Continue from what `state` returned.

        Raises:
            RawValueError: the state is raw.
        """
        self._optimizer.restore(state)
        if self._filter is not None:
            self._filter.restore(post_process(_of_the_filter, state))


def _of_the_filter(tensors: Tensors) -> Tensors:
    own = {name: value for name, value in tensors.items() if name.startswith(_FILTER)}
    return {name.removeprefix(_FILTER): value for name, value in own.items()}
