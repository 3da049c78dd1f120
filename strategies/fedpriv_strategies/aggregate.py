"""Put the sites' noisy sums together into one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.models.vector import Vector


@dataclass(frozen=True)
class SiteSum:
    """What one site released in a round, with the public figures that weight it.

    Attributes:
        value: (P,) Σ clipped unit vectors + N(0, (σC)²).
        noise_multiplier: σ of this site.
        expected_units: sample rate × declared size; never the realised batch.
    """

    value: Vector
    noise_multiplier: float
    expected_units: float


def weighted_mean(sums: Sequence[SiteSum]) -> Vector:
    """ĝ = Σ aᵢ S̃ᵢ / Σ aᵢ q nᵢ with aᵢ = 1/σᵢ², over the sites that took part.

    The weights are public. With equal σ this is DP-SGD on the pooled records with the noise of
    the sites added up; a site that noises more counts less.

    Privacy:
        Post-processing of released values.
    """
    weights = np.array([1 / item.noise_multiplier**2 for item in sums])
    total = np.zeros(sums[0].value.shape, dtype=np.float64)
    for weight, item in zip(weights, sums, strict=True):
        total += weight * item.value
    expected = float(np.dot(weights, [item.expected_units for item in sums]))
    return (total / expected).astype(np.float32)
