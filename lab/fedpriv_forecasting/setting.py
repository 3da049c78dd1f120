"""The figures by which the curve places a federation among the measured ones."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Hold a federation's place on the curve.

    Attributes:
        records: records of a site. If sites differ, it is their geometric mean.
        noise: noise to signal of the federation, as in `noise_to_signal`.
    """

    sites: int
    records: float
    noise: float

    @property
    def group(self) -> tuple[int, float]:
        """Return what runs have in common that share sites with this setting."""
        return self.sites, self.records

    def distance(self, other: Setting) -> float:
        """Return the distance in doublings of records and of noise."""
        records, noise = self.records / other.records, self.noise / other.noise
        return math.hypot(math.log2(records), math.log2(noise))


def noise_to_signal(noise_multiplier: float, batch: float, rounds: int) -> float:
    """Return the noise of the mean of all rounds' gradients, in clip norms, for each trained value.

    The mean gradient of a round has noise of ν·C for each value, where C is the clip norm, and no
    vector in it is longer than C. Over T rounds the noise of the mean falls to ν / √T:

        s = σ / (q · N · √T)

    Args:
        noise_multiplier: σ of the sum of all sites' noise together.
        batch: q · N, the expected units of all sites in a round.
        rounds: T.
    """
    return noise_multiplier / (batch * math.sqrt(rounds))
