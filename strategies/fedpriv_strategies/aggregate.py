"""Combine the sites' noisy sums into one gradient, one site at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.errors import ProtocolError, RoundError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, require_privatised
from fedpriv.public_update.config import OptimizerSection
from fedpriv.wire import BLOCK, Blocks

Total = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class SiteSum:
    """What one site released in a round, with the public figures that determine its weight.

    Attributes:
        value: (P,) Σ clipped unit vectors + N(0, (σC)²).
        noise_multiplier: σ of this site.
        expected_units: sample rate × declared size; never the realised batch.
        clip_norm: C.

    Raises:
        RawValueError: `value` is raw.
    """

    value: Privatised[Blocks]
    noise_multiplier: float
    expected_units: float
    clip_norm: float

    def __post_init__(self) -> None:
        require_privatised(self.value, "SiteSum.value")

    @property
    def weight(self) -> float:
        """How much the site counts: its expected units, divided by σ²."""
        return self.expected_units / self.noise_multiplier**2

    @property
    def factor(self) -> float:
        """Factor of the value in the sum over all sites, which the sum of weights divides."""
        return 1 / self.noise_multiplier**2

    @property
    def variance(self) -> float:
        """Variance of the noise in one coordinate of factor × value."""
        return (self.clip_norm / self.noise_multiplier) ** 2  # (σ C)² / σ⁴

    @property
    def units(self) -> float:
        """How many units the site was expected to train on in the round."""
        return self.expected_units

    def largest_norm(self, size: int) -> float:
        """Return an L2 norm that an honest site's value exceeds less than once in 10⁸ rounds.

        It allows as many clipped vectors as a batch ever holds, all in one direction, with noise in
        `size` coordinates. It adds a twentieth for rounding on the wire.
        """
        units = self.expected_units + 6 * math.sqrt(self.expected_units) + 6
        noise = self.noise_multiplier * (math.sqrt(size) + 6)
        return 1.05 * self.clip_norm * (units + noise)


@dataclass(frozen=True)
class SiteMove(SiteSum):
    """The move that a site made in the private steps of a round, instead of a sum.

    Attributes:
        value: (P,), old values minus new values.
        start: L2 norm of the old values.
        steps: how many steps made the move.
        optimizer: settings of the optimiser that made it.
    """

    start: float
    steps: int
    optimizer: OptimizerSection

    @property
    def factor(self) -> float:
        """The weight, because a move is a mean already."""
        return self.weight

    @property
    def variance(self) -> float:
        """0, because the noise of several steps is not known after an optimiser has used it."""
        return 0.0

    @property
    def units(self) -> float:
        """How many units the site was expected to train on in all steps together."""
        return self.expected_units * self.steps

    def largest_norm(self, size: int) -> float:
        """Bound the L2 norm as for a sum, over all steps at the settings' rate in one direction."""
        settings = self.optimizer
        gradient = super().largest_norm(size) / self.expected_units
        largest, moved = math.sqrt(size) * _largest_ratio(settings.betas, self.steps), 0.0
        for _ in range(self.steps):
            decay = settings.weight_decay * (self.start + moved)
            match settings.name:
                case "sgd":
                    step = (gradient + decay) / (1 - settings.momentum)
                case "adamw":
                    step = largest + decay
            moved += 1.05 * settings.lr * step
        return moved


def _largest_ratio(betas: tuple[float, float], steps: int) -> float:
    """Bound m̂ / √v̂ in one coordinate, for any gradients (by Cauchy-Schwarz)."""
    first, second = betas
    largest = total = 0.0
    power = 1.0  # power of β₁²/β₂; it may become infinite, and then nothing is bounded
    for step in range(1, steps + 1):
        total += power
        power *= first**2 / second if second else 0.0
        ratio = (1 - first) * math.sqrt(total / (1 - second))
        largest = max(largest, ratio * math.sqrt(1 - second**step) / (1 - first**step))
    return largest


class WeightedMean:
    """ĝ = Σ aᵢ S̃ᵢ / Σ aᵢ q nᵢ with aᵢ = 1/σᵢ², over the sites that took part.

    The weights are public. With equal σ this is DP-SGD on the pooled records, with the sum of
    the sites' noise. A site that adds more noise counts less. A move, which its site has divided
    by q nᵢ already, has the factor aᵢ q nᵢ. Memory holds one float64 vector (P,) and one block,
    however many sites there are.

    Privacy:
        Post-processing of released values.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._begin()

    def _begin(self) -> None:
        self._total: tuple[Privatised[Total], ...] = ()  # holds one from the first site on
        self._expected = self._noise = self.units = 0.0
        self.sites = 0

    def add(self, site: SiteSum) -> None:
        """Add a site to the mean.

        Raises:
            ProtocolError: its value can't be used, or is larger than such a value can be.
                Nothing was added.
            RoundError: its value changed between two readings; this mean is of no use any more.
        """
        factor = np.float64(site.factor)

        def plus(blocks: Blocks, *totals: Total) -> Total:
            if blocks.size != self._size:
                raise ProtocolError(f"Expected {self._size} values, got {blocks.size}.")
            square = 0.0
            for _, block in blocks:  # a value that is wrong in its last block adds nothing
                square += float(np.square(block, dtype=np.float64).sum())
            if square > site.largest_norm(self._size) ** 2:
                raise ProtocolError("It is larger than clipped vectors and noise can be.")
            total, *_ = totals or (np.zeros(self._size, dtype=np.float64),)
            try:
                for part, block in blocks:
                    total[part] += factor * block
            except ProtocolError as error:
                text = f"A reply changed while it was read: {error}"
                raise RoundError(text, may_heal=True) from None
            return total

        self._total = (post_process(plus, site.value, *self._total),)
        self._expected += site.weight
        self.units += site.units
        self._noise += site.variance
        self.sites += 1

    @property
    def noise_variance(self) -> float:
        """Variance of the added sites' noise in one coordinate of the mean; 0 for moves."""
        return self._noise / self._expected**2

    def take(self) -> Privatised[Vector]:
        """Return the mean, float32 (P,), in the sum's memory. The next `add` begins a new sum.

        Raises:
            RoundError: no site was added.
        """
        if not self._total:
            raise RoundError("There is no mean of no sites.")
        [taken], expected = self._total, self._expected

        def mean(total: Total) -> Vector:
            result: Vector = total.view(np.float32)[: total.size]
            for start in range(0, total.size, BLOCK):  # writing never overtakes reading
                part = slice(start, start + BLOCK)
                result[part] = total[part] / expected
            return result

        self._begin()
        return post_process(mean, taken)
