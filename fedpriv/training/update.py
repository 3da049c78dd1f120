"""From a released gradient to new values: post-process it, choose a move, make it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.training.config import OptimizerSection
from fedpriv.training.gate import Choice, Gate
from fedpriv.training.optimizer import Tensors, VectorOptimizer
from fedpriv.training.post_processing import Candidate, Denoise, Found, PostProcessor


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
        processors: applied to every released gradient, in order.
        gate: chooses where they leave several candidates.

    Attributes:
        optimizer: its settings.
        size: P.
        choice: what the gate took in the last step; None without one.

    Raises:
        RawValueError: `initial` is raw.

    Privacy:
        Post-processing of released values.
    """

    def __init__(
        self,
        optimizer: OptimizerSection,
        initial: Privatised[Vector],
        processors: Sequence[PostProcessor] = (),
        gate: Gate | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._optimizer = VectorOptimizer(optimizer, initial)
        self._processors = tuple(processors)
        self._gate = gate
        self.choice: Choice | None = None
        self.size = self._optimizer.size

    @property
    def vector(self) -> Privatised[Vector]:
        """The current values, float32 (P,)."""
        return self._optimizer.vector

    @property
    def denoised(self) -> Found | None:
        """What was found in the last gradient; None without denoising."""
        found = [one.found for one in self._processors if isinstance(one, Denoise)]
        return found[-1] if found else None

    def step(self, released: Aggregate, *, number: int, lr: float) -> Privatised[Vector]:
        """Move along a released gradient, and return the new values.

        Args:
            number: of the round.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.
            ValueError: several candidates are left, and there is no gate; nothing was changed.
        """
        candidates = [Candidate("raw", released.gradient)]
        for processor in self._processors:
            candidates = processor(candidates, released.noise_variance)
        moves = {
            one.name: partial(self._optimizer.step, one.gradient, lr=one.rate * lr)
            for one in candidates
        }
        if self._gate is not None:
            return self._best(self._gate, moves, number, released.units)
        if len(moves) > 1:
            raise ValueError(f"Expected a gate that chooses among {', '.join(moves)}.")
        (move,) = moves.values()
        return move()

    def _best(
        self,
        gate: Gate,
        moves: dict[str, partial[Privatised[Vector]]],
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
