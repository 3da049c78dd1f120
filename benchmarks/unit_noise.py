"""Draw noise of deviation 1 as a release draws it, for benchmarks that add it by themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.noise import rounded_gaussian

STEPS = 2.0**30  # integers that are drawn, in one deviation


def unit_noise(size: int, csprng: RandomSource) -> npt.NDArray[np.float64]:
    """Draw (size,) independent Gaussian values, rounded to 2^-30."""
    return rounded_gaussian(size, STEPS, csprng) / STEPS
