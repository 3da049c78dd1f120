"""What a model gives away about a canary's secret: its exposure.

Source:
    Carlini et al., "The Secret Sharer: Evaluating and Testing Unintended Memorization in Neural
    Networks", USENIX Security 2019: exposure = log2 |R| - log2 rank.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

Scores = npt.NDArray[np.float64]
DRAWS = 100_000


def exposure(scores: Scores) -> float:
    """Return the exposure of the first score in bits: how early an attacker comes to it.

    A tie counts half.

    Args:
        scores: (n,) higher for what the model finds likelier. The secret's own score is the first.
    """
    return math.log2(len(scores) / float(rankdata(-scores)[0]))


def by_chance(mean: float, canaries: int, candidates: int, seed: int = 0) -> float:
    """Return the chance of a mean exposure at least this high if no secret was ever seen.

    Each rank is then equally likely. Computed by Monte Carlo, and never 0.
    """
    ranks = np.random.default_rng(seed).integers(1, candidates + 1, (DRAWS, canaries))
    means = np.log2(candidates / ranks).mean(1)
    return float((np.count_nonzero(means >= mean - 1e-9) + 1) / (DRAWS + 1))


def expected_by_chance(candidates: int) -> float:
    """Return the mean exposure, in bits, of a secret that was never seen."""
    return float(np.log2(candidates / np.arange(1, candidates + 1)).mean())
