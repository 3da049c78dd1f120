"""Where a federation is among those that were measured: the figures that the curve goes by."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Where on the curve.

    Attributes:
        records: of a site; of sites that differ, their geometric mean.
        noise: to signal, of the federation, as in `fedpriv_forecasting.noise`.
    """

    sites: int
    records: float
    noise: float
    warm_start: bool = False

    @property
    def group(self) -> tuple[int, float]:
        """Which runs share sites with it."""
        return self.sites, self.records

    def distance(self, other: Setting) -> float:
        """In doublings of records and of noise."""
        records, noise = self.records / other.records, self.noise / other.noise
        return math.hypot(math.log2(records), math.log2(noise))
