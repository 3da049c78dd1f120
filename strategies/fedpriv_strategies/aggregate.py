"""Put the sites' noisy sums together into one gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.models.vector import Vector
from fedpriv.privacy.privatised import Privatised, post_process, require_privatised


@dataclass(frozen=True)
class SiteSum:
    """What one site released in a round, with the public figures that weight it.

    Attributes:
        value: (P,) Σ clipped unit vectors + N(0, (σC)²).
        noise_multiplier: σ of this site.
        expected_units: sample rate × declared size; never the realised batch.

    Raises:
        RawValueError: `value` is raw.
    """

    value: Privatised[Vector]
    noise_multiplier: float
    expected_units: float

    def __post_init__(self) -> None:
        require_privatised(self.value, "SiteSum.value")


def weighted_mean(sums: Sequence[SiteSum]) -> Privatised[Vector]:
    """ĝ = Σ aᵢ S̃ᵢ / Σ aᵢ q nᵢ with aᵢ = 1/σᵢ², over the sites that took part.

    The weights are public. With equal σ this is DP-SGD on the pooled records with the noise of
    the sites added up; a site that noises more counts less.

    Privacy:
        Post-processing of released values.
    """
    weights = np.array([1 / item.noise_multiplier**2 for item in sums])
    expected = float(np.dot(weights, [item.expected_units for item in sums]))

    def mean(*values: Vector) -> Vector:
        total = np.zeros(values[0].shape, dtype=np.float64)
        for weight, value in zip(weights, values, strict=True):
            total += weight * value
        return (total / expected).astype(np.float32)

    return post_process(mean, *(item.value for item in sums))
