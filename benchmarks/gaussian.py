"""Standard normal numbers by the mechanism's own sampler, on a fine grid; for the scripts here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.noise import rounded_gaussian

STEPS = 2.0**30  # of the grid in a standard deviation


def gaussian(n: int, csprng: RandomSource) -> npt.NDArray[np.float64]:
    """`n` of them, as what noises a release is drawn."""
    return rounded_gaussian(n, STEPS, csprng) / STEPS
