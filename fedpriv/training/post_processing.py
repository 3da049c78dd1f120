"""What is made of a released gradient before the optimiser moves: a list of small post-processors.

Each turns candidates into candidates; where several are left, a gate takes one. All of it is
post-processing of released values and costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fedpriv.gradients.denoise import Denoiser
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.training.config import DenoiseSection, GateSection


@dataclass(frozen=True)
class Candidate:
    """A move that could be made.

    Attributes:
        name: shown in metrics.
        gradient: (P,) to move along.
        rate: multiple of the learning rate.
    """

    name: str
    gradient: Privatised[Vector]
    rate: float = 1.0


class PostProcessor(Protocol):
    """One step between a release and the optimiser."""

    def __call__(self, candidates: Sequence[Candidate], noise_variance: float) -> list[Candidate]:
        """What becomes of the candidates.

        Args:
            noise_variance: of the privacy noise in a coordinate of a released gradient; public.
        """
        ...


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


class Denoise:
    """Every candidate without some of its noise, and if wanted as it was, too.

    Attributes:
        found: in the last gradient; None before there was one.
    """

    def __init__(self, settings: DenoiseSection, shapes: Sequence[tuple[int, ...]]) -> None:
        self._denoiser = Denoiser(shapes, settings)
        self._as_it_was_too = settings.where == "gate"
        self.found: Found | None = None

    def __call__(self, candidates: Sequence[Candidate], noise_variance: float) -> list[Candidate]:
        """As `PostProcessor`."""
        made = []
        for candidate in candidates:
            if self._as_it_was_too:
                made.append(candidate)
            gradient = self._denoised(candidate.gradient, noise_variance)
            made.append(replace(candidate, name="denoised", gradient=gradient))
        return made

    def _denoised(self, gradient: Privatised[Vector], variance: float) -> Privatised[Vector]:
        denoiser = self._denoiser
        found = denoiser(gradient, variance**0.5)
        self.found = Found(found.value.on, denoiser.matrices, denoiser.by_chance)
        return post_process(lambda denoised: denoised.vector, found)


class Rates:
    """Every candidate at several multiples of the learning rate."""

    def __init__(self, rates: Sequence[float]) -> None:
        self._rates = tuple(rates)

    def __call__(self, candidates: Sequence[Candidate], noise_variance: float) -> list[Candidate]:
        """As `PostProcessor`."""
        return [
            candidate
            if rate == 1
            else replace(candidate, name=f"{candidate.name} × {rate!r}", rate=rate)
            for candidate in candidates
            for rate in self._rates
        ]


def post_processors(
    denoise: DenoiseSection,
    shapes: Sequence[tuple[int, ...]],
    gate: GateSection | None = None,
) -> list[PostProcessor]:
    """Those that a job's settings ask for, in order.

    Args:
        shapes: of the layers, in the order of the vector.
    """
    made: list[PostProcessor] = []
    if denoise.where != "off":
        made.append(Denoise(denoise, shapes))
    if gate is not None:
        made.append(Rates(gate.rates))
    return made
