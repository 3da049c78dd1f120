"""From a released gradient to new values: denoise it, choose a move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from fedpriv.config.job import DenoiseSection, OptimizerSection
from fedpriv.privacy.mechanism.privatised import Privatised, post_process
from fedpriv.training.optimizer import Tensors, VectorOptimizer

if TYPE_CHECKING:
    from fedpriv.gradients.denoise import Denoiser
    from fedpriv.models.vector import Vector
    from fedpriv.training.gate import Choice, Gate


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


@dataclass(frozen=True)
class Aggregate:
    """What the sites released in a round, as one gradient.

    Attributes:
        gradient: (P,) float32.
        noise_variance: of the privacy noise in a coordinate of it; public.
        units: that the sites together were expected to train on in the round.
    """

    gradient: Privatised[Vector]
    noise_variance: float
    units: float


class Update:
    """What becomes of the released gradients of a job.

    Args:
        shapes: of the layers, in the order of the vector.
        gate: chooses between moves where there are several.

    Attributes:
        optimizer: its settings.
        size: P.
        denoised: what the denoiser found in the last step; None without one.
        choice: what the gate took in the last step; None without one.

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
        gate: Gate | None = None,
    ) -> None:
        from fedpriv.gradients.denoise import Denoiser

        self.optimizer = optimizer
        self._optimizer = VectorOptimizer(optimizer, initial)
        self._denoiser = Denoiser(shapes, denoise) if denoise.where != "off" else None
        self._raw_too = denoise.where == "gate"
        self._rates = (1.0,) if gate is None else gate.rates
        self._gate = gate
        self.denoised: Found | None = None
        self.choice: Choice | None = None
        self.size = self._optimizer.size

    @property
    def vector(self) -> Privatised[Vector]:
        """The current values, float32 (P,)."""
        return self._optimizer.vector

    def step(self, released: Aggregate, *, number: int, lr: float) -> Privatised[Vector]:
        """Move along a released gradient, and return the new values.

        Args:
            number: of the round.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
        """
        gradient, variance = released.gradient, released.noise_variance
        gradients = {"raw": gradient} if self._raw_too or self._denoiser is None else {}
        if self._denoiser is not None:
            gradients["denoised"] = self._denoise(self._denoiser, gradient, variance)
        moves = {
            _named(name, rate): partial(self._optimizer.step, slope, lr=rate * lr)
            for name, slope in gradients.items()
            for rate in self._rates
        }
        if self._gate is None:
            (move,) = moves.values()
            return move()
        return self._best(self._gate, moves, number, released.units)

    def _denoise(
        self, denoiser: Denoiser, gradient: Privatised[Vector], variance: float
    ) -> Privatised[Vector]:
        found = denoiser(gradient, variance**0.5)
        self.denoised = Found(found.value.on, denoiser.matrices, denoiser.by_chance)
        return post_process(lambda denoised: denoised.vector, found)

    def _best(
        self,
        gate: Gate,
        moves: Mapping[str, Callable[[], Privatised[Vector]]],
        number: int,
        units: float,
    ) -> Privatised[Vector]:
        """Every move from the same values and the same state of the optimiser; the best is kept."""
        before = self._optimizer.copy()

        def from_here(move: Callable[[], Privatised[Vector]]) -> Privatised[Vector]:
            self._optimizer.restore(before)
            return move()

        tried = {name: partial(from_here, move) for name, move in moves.items()}
        try:
            self.choice = gate.choose(tried, number=number, units=units)
        except BaseException:  # nothing was taken
            self._optimizer.restore(before)
            raise
        return from_here(moves[self.choice.taken])

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


def _named(name: str, rate: float) -> str:
    return name if rate == 1 else f"{name} × {rate!r}"
