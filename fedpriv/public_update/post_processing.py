"""What is made of a released gradient before the optimiser moves: it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.models.vector import Vector
from fedpriv.plugins import load_part
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.public_update.config import DenoiseSection

if TYPE_CHECKING:
    from fedpriv.public_update.denoise import Denoiser


@dataclass(frozen=True)
class Found:
    """Matrices of a gradient in which a signal was found.

    Attributes:
        on: the number with a signal.
        matrices: the number of all.
        by_chance: the average number if there is nothing but noise.
    """

    on: int
    matrices: int
    by_chance: float


class Denoise:
    """Takes some of the noise out of a released gradient.

    Args:
        shapes: the shapes of the layers, in the order of the vector.

    Attributes:
        found: what was found in the last gradient; None before there was one.
    """

    def __init__(self, settings: DenoiseSection, shapes: Sequence[tuple[int, ...]]) -> None:
        self._denoiser: Denoiser = load_part("denoise.where")(shapes, settings)
        self.found: Found | None = None

    def __call__(self, gradient: Privatised[Vector], variance: float) -> Privatised[Vector]:
        """Return the gradient (P,) without its noise.

        Args:
            variance: of the privacy noise in a coordinate of the gradient; public.
        """
        denoiser = self._denoiser
        found = denoiser(gradient, variance**0.5)
        self.found = Found(found.value.on, denoiser.matrices, denoiser.by_chance)
        return post_process(lambda denoised: denoised.vector, found)


def denoise_of(settings: DenoiseSection, shapes: Sequence[tuple[int, ...]]) -> Denoise | None:
    """Return what a job's settings ask for; None where they ask for nothing."""
    return None if settings.where == "off" else Denoise(settings, shapes)
