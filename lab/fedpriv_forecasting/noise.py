"""How much noise a federation's training has, for what it can learn: one figure for all of it."""

from __future__ import annotations

import math


def noise_to_signal(noise_multiplier: float, batch: float, rounds: int) -> float:
    """Noise of the mean of all rounds' gradients, in clip norms, for each trained value.

    The mean gradient of a round has noise of ν·C for each value, C the clip norm, and no vector
    in it is longer than C. Over T rounds the mean of the noise falls to ν / √T:

        s = σ / (q · N · √T)

    Args:
        noise_multiplier: σ of the sum of all sites' noise together.
        batch: q · N, the units of all sites in a round, as expected.
        rounds: T.
    """
    return noise_multiplier / (batch * math.sqrt(rounds))
