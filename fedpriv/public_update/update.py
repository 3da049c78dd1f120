"""From a released gradient to new values: post-process it, and move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.models.vector import Vector
from fedpriv.plugins import load_part
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.optimizer import VectorOptimizer

if TYPE_CHECKING:
    from fedpriv.public_update.denoise import Denoiser, Found


@dataclass(frozen=True)
class Aggregate:
    """The sites' releases of a round, as one gradient.

    Attributes:
        gradient: (P,) float32; before the server's half of a method lifted it, as long as a
            release.
        noise_variance: the variance of the privacy noise in a coordinate; public. 0 if it is not
            the same in all coordinates.
        units: the expected number on which all sites together trained in the round.
    """

    gradient: Privatised[Vector]
    noise_variance: float
    units: float


class Update(VectorOptimizer):
    """The use of the released gradients of a job.

    Args:
        settings, initial: see `VectorOptimizer`.
        denoise: applied to every released gradient, if there is one.

    Raises:
        RawValueError: `initial` is raw.

    Privacy:
        Post-processing of released values.
    """

    def __init__(
        self,
        settings: OptimizerSection,
        initial: Privatised[Vector],
        denoise: Denoiser | None = None,
    ) -> None:
        super().__init__(settings, initial)
        self._denoise = denoise

    @property
    def denoised(self) -> Found | None:
        """What was found in the last gradient; None without denoising."""
        return None if self._denoise is None else self._denoise.found

    def move(self, released: Aggregate, *, lr: float) -> Privatised[Vector]:
        """Move along a released gradient, and return the new values.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
        """
        gradient = released.gradient
        if self._denoise is not None:
            gradient = self._denoise(gradient, released.noise_variance**0.5)
        return self.step(gradient, lr=lr)


def denoise_of(settings: DenoiseSection, shapes: Sequence[tuple[int, ...]]) -> Denoiser | None:
    """Return what takes noise out of released gradients, as a job asks for; None if it does not.

    Args:
        shapes: the shapes of the layers, in the order of the vector.
    """
    found: Denoiser | None = None
    if settings.where != "off":
        found = load_part("denoise.where")(shapes, settings)
    return found
