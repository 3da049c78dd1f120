"""What the released sums of a look say of held-out units, and how uncertain noise makes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.config.looks import LooksSection
from fedpriv.models.vector import Vector
from fedpriv.protocol import Centres


@dataclass(frozen=True)
class Estimate:
    """A mean over held-out units, and how uncertain noise makes it.

    Attributes:
        mean: centre and mean distance; it may be out of bounds, as noise has none.
        deviation: standard deviation of the noise in it, in the same unit; public. That a share of
            the units was drawn adds to it, and is not in it.
    """

    mean: float
    deviation: float


def estimates(
    totals: Sequence[Vector],
    noise_multipliers: Sequence[float],
    units: Sequence[float],
    *,
    ranges: LooksSection,
    centres: Centres,
    clip_norm: float,
) -> tuple[Estimate, Estimate]:
    """Mean loss and accuracy over the held-out units of one or several sites.

    Every unit counts the same, whatever its site's noise is. The divisors are public.

    Args:
        totals: released, one a site (2,).
        noise_multipliers: σ of each site.
        units: sample rate × declared held-out units of each site, in one step.
    """
    expected = clip_norm * ranges.slots * math.fsum(units)
    spread = math.hypot(*noise_multipliers) * clip_norm * math.sqrt(ranges.slots)
    sums = np.stack(totals).sum(0, dtype=np.float64).tolist()
    scales = (ranges.loss_range, ranges.accuracy_range)
    loss, accuracy = (
        Estimate(centre + scale * found / expected, scale * spread / expected)
        for centre, scale, found in zip((centres.loss, centres.accuracy), scales, sums, strict=True)
    )
    return loss, accuracy
