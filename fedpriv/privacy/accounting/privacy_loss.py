"""The privacy loss of one step of the Poisson-subsampled Gaussian mechanism.

What a step can tell about units that were removed or added is no more than what one sample x tells
about which of two distributions on the line it came from: P with the units, a mixture of Gaussians
over how many of them are in the sample, or Q without them. Its log ratio
ℓ(x) = log P(x)/Q(x) is increasing, so a cell of losses is an interval of x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp, ndtr

Float = npt.NDArray[np.float64]
_NOWHERE = 40.0  # standard deviations: beyond them a normal has no mass in float64


@dataclass(frozen=True)
class SubsampledGaussian:
    """The pair (P, Q) that dominates one step, and (Q, P) in the other direction.

    P = Σᵢ Binomial(i; units, q) N(i, σ²) and Q = N(0, σ²), in units of the sensitivity. One unit
    is the pair of add/remove; k, that of a person with k units.

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: σ > 0.
        units: how many only one of two neighbouring populations holds.

    Source:
        Zhu, Dong and Wang 2022, "Optimal Accounting of Differential Privacy via Characteristic
        Function", Theorem 11 (one unit); Schuchardt, Stoian, Kosmala and Günnemann 2024,
        "Unified Mechanism-Specific Amplification by Subsampling and Group Privacy
        Amplification" (several).
    """

    sample_rate: float
    noise_multiplier: float
    units: int = 1

    @cached_property
    def p(self) -> list[tuple[float, float]]:
        """The centre and log weight of the parts of P."""
        return _binomial(self.units, self.sample_rate)

    def log_ratio(self, x: Float) -> Float:
        """Return ℓ(x)."""
        variance = self.noise_multiplier**2
        terms = [weight + centre * (2 * x - centre) / 2 / variance for centre, weight in self.p]
        total = np.asarray(terms[0], dtype=np.float64)
        for term in terms[1:]:
            total = np.logaddexp(total, term)
        return total

    def output(self, losses: Float) -> Float:
        """Return the x at which ℓ(x) = loss, for ascending losses; cut where no mass is beyond."""
        if self.units == 1:
            return self._output_of_one(losses)
        low = np.full(losses.shape, -_NOWHERE * self.noise_multiplier)
        high = np.full(losses.shape, self.units + _NOWHERE * self.noise_multiplier)
        for _ in range(64):
            middle = (low + high) / 2
            above = self.log_ratio(middle) >= losses
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return high

    def _output_of_one(self, losses: Float) -> Float:
        """Return `output` in closed form; −∞ below the infimum of ℓ, log(1 − q)."""
        q, variance = self.sample_rate, self.noise_multiplier**2
        if q == 1:
            return variance * losses + 0.5
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            near = np.log1p(np.maximum(np.expm1(np.minimum(losses, 1.0)) / q, -1.0))
            far = losses + np.log1p((q - 1) * np.exp(-np.maximum(losses, 1.0))) - math.log(q)
            # Losses so low come with q near 1 alone. 1 + expm1 would lose the digits of e^loss.
            low = np.log(np.maximum(np.exp(losses) - (1 - q), 0.0)) - math.log(q)
            found = np.where(losses < -1, low, np.where(losses < 1, near, far))
            output: Float = variance * found + 0.5
        return output

    def span(self, reach: float) -> tuple[float, float]:
        """Return the losses between `reach` standard deviations outside the outermost centres."""
        beyond = reach * self.noise_multiplier
        ends = self.log_ratio(np.array([-beyond, self.units + beyond]))
        return float(ends[0]), float(ends[1])

    def masses(self, losses: Float) -> tuple[Float, Float]:
        """Return what P and Q put below the first loss, between each two, and above the last."""
        x = self.output(losses)
        return self._masses(self.p, x), self._masses([(0.0, 0.0)], x)

    def _masses(self, parts: list[tuple[float, float]], x: Float) -> Float:
        """Subtract whichever tails are small, so that both tails keep their digits."""
        total = np.zeros(len(x) + 1)
        for centre, weight in parts:
            z = (x - centre) / self.noise_multiplier
            below = np.concatenate([[0.0], ndtr(z), [1.0]])
            above = np.concatenate([[1.0], ndtr(-z), [0.0]])
            total += math.exp(weight) * np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
        return total

    def log_moments(self, orders: Float, reach: float) -> Float:
        """Return log E_P[exp(λℓ)] for each λ, x within `reach`: to size a grid, not to bound."""
        z = np.linspace(-reach, reach, 201)
        log_mass = -(z**2) / 2
        log_mass -= logsumexp(log_mass)
        log_moments = [
            weight
            + logsumexp(
                orders[:, None] * self.log_ratio(centre + z * self.noise_multiplier) + log_mass, 1
            )
            for centre, weight in self.p
        ]
        total: Float = logsumexp(log_moments, axis=0)
        return total


def _binomial(n: int, q: float) -> list[tuple[float, float]]:
    """Return (k, log probability) of k successes of n, for each k that can happen."""
    if q == 1:
        return [(float(n), 0.0)]
    return [
        (
            float(k),
            float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))
            + (k * math.log(q) if k else 0.0)
            + (n - k) * math.log1p(-q),
        )
        for k in range(n + 1)
    ]
