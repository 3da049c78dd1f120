"""Turn a released gradient into new values: post-process it, and move.

All of it sees privatised gradients only, so it costs nothing. The learning rate of a step is a
public function of the settings and the step's number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.models.vector import Vector
from fedpriv.plugins import load_part
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, require_privatised
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.wire import BLOCK

if TYPE_CHECKING:
    import torch

    from fedpriv.public_update.denoise import Denoiser, Found

Tensors = dict[str, "torch.Tensor"]


class VectorOptimizer:
    """A torch optimiser over one flat parameter.

    Torch sees it in blocks, so that what a step needs besides its state is one block large.

    Attributes:
        vector: the current values, float32 (P,): public at first, privatised afterwards. A step
            makes a new vector and leaves this one as it is.
        settings: what it was made from.
        size: P.

    Raises:
        RawValueError: `initial` is raw.
    """

    def __init__(self, settings: OptimizerSection, initial: Privatised[Vector]) -> None:
        import torch

        start = require_privatised(initial, "initial")
        self.vector = initial
        self.size = start.size
        self._blocks = [torch.nn.Parameter(part) for part in _split(torch.from_numpy(start))]
        self._state: Tensors = {}  # state of all blocks together; theirs are views of it
        self.settings = settings
        kind: Any = torch.optim.SGD if settings.name == "sgd" else torch.optim.AdamW
        own = (
            {"momentum": settings.momentum} if settings.name == "sgd" else {"betas": settings.betas}
        )
        self._optimizer: torch.optim.Optimizer = kind(
            self._blocks, lr=settings.lr, weight_decay=settings.weight_decay, foreach=False, **own
        )

    def step(self, gradient: Privatised[Vector], *, lr: float | None = None) -> Privatised[Vector]:
        """Move along a released gradient (P,), and return the new values.

        Args:
            lr: the rate of this step; by default that of the settings.

        Raises:
            RawValueError: the gradient is raw; nothing was changed.

        Privacy:
            Post-processing of released values.
        """
        require_privatised(gradient, "gradient")
        (group,) = self._optimizer.param_groups
        group["lr"] = self.settings.lr if lr is None else lr
        self.vector = post_process(self._moved, self.vector, gradient)
        return self.vector

    def _moved(self, vector: Vector, gradient: Vector) -> Vector:
        import torch

        moved = torch.from_numpy(vector.copy())
        parts = zip(_split(moved), _split(torch.from_numpy(gradient)), strict=True)
        for block, (values, slope) in zip(self._blocks, parts, strict=True):
            block.data, block.grad = values, slope
        self._optimizer.step()
        self._optimizer.zero_grad()  # lets go of the gradient
        if not self._state:
            self._state = self._gathered()
        return moved.numpy()

    def _gathered(self) -> Tensors:
        """Put together what torch made for each block in the first step."""
        import torch

        first, *_ = states = [self._optimizer.state[block] for block in self._blocks]
        found: Tensors = {}
        for key in [key for key, value in first.items() if value is not None]:
            if first[key].dim() == 0:  # the count of steps, the same for all
                found[key] = first[key]
                continue
            found[key] = torch.cat([state[key] for state in states])
            for state, view in zip(states, _split(found[key]), strict=True):
                state[key] = view
        return found

    def state(self) -> Privatised[Tensors]:
        """Return everything needed to continue, as named tensors, good until the next step."""
        return post_process(self._tensors, self.vector)

    def _tensors(self, vector: Vector) -> Tensors:
        import torch

        tensors = {f"optimizer.{key}": value for key, value in self._state.items()}
        return {"vector": torch.from_numpy(vector), **tensors}

    def start_at(self, vector: Privatised[Vector]) -> None:
        """Begin anew from these values, (P,).

        Raises:
            RawValueError: they are raw.
        """
        self.restore(post_process(_alone, vector))

    def restore(self, state: Privatised[Tensors]) -> None:
        """Continue from what `state` returned.

        Raises:
            RawValueError: the state is raw.
        """
        tensors = require_privatised(state, "state")
        self.vector = post_process(vector_of, state)
        self._state = {
            key.removeprefix("optimizer."): value.clone()
            for key, value in tensors.items()
            if key.startswith("optimizer.")
        }
        for block in self._blocks:
            self._optimizer.state[block] = {}
        for key, value in self._state.items():
            if value.dim() == 0:  # torch counts in place, for each block alone
                parts = [value, *(value.clone() for _ in self._blocks[1:])]
            else:
                parts = _split(value)
            for block, part in zip(self._blocks, parts, strict=True):
                self._optimizer.state[block][key] = part


def _alone(vector: Vector) -> Tensors:
    import torch

    return {"vector": torch.from_numpy(vector)}


def _split(flat: torch.Tensor) -> list[torch.Tensor]:
    return [flat[start : start + BLOCK] for start in range(0, flat.numel(), BLOCK)]


def vector_of(tensors: Tensors) -> Vector:
    """Return the values (P,) in what `VectorOptimizer.state` gave."""
    return tensors["vector"].numpy().copy()


def learning_rate(settings: OptimizerSection, step: int, steps: int) -> float:
    """Return the rate of step 1 … `steps`.

    It rises in `warmup` equal stairs to `lr`, then stays, or falls to 0 just after the last step
    along a line or half a cosine.

    Raises:
        ValueError: there is no such step.
    """
    if not 1 <= step <= steps:
        raise ValueError(f"Expected 1 <= step={step} <= steps={steps}.")
    if step <= settings.warmup:
        return settings.lr * step / settings.warmup
    done = (step - 1 - settings.warmup) / (steps - settings.warmup)
    match settings.schedule:
        case "constant":
            return settings.lr
        case "linear":
            return settings.lr * (1 - done)
        case "cosine":
            return settings.lr * (1 + math.cos(math.pi * done)) / 2


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
    """Use the released gradients of a job.

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
    """Return the denoiser of released gradients that a job asks for; None if it asks for none.

    Args:
        shapes: the shapes of the layers, in the order of the vector.
    """
    found: Denoiser | None = None
    if settings.where != "off":
        found = load_part("denoise.where")(shapes, settings)
    return found
