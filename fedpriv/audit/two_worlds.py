"""A lower bound on ε from two worlds that differ in one record, each run many times.

Source:
    Jagielski, Ullman & Oprea, "Auditing Differentially Private Machine Learning: How Private is
    Private SGD?", NeurIPS 2020, with δ as in Nasr et al., "Tight Auditing of Differentially Private
    Machine Learning", USENIX Security 2023.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

Scores = npt.NDArray[np.float64]
THRESHOLDS = 200  # that are tried on the first half


def clopper_pearson(hits: int, trials: int, error: float) -> tuple[float, float]:
    """A lower and an upper bound on a probability, each wrong with a chance of at most `error`.

    Source:
        Clopper & Pearson, "The use of confidence or fiducial limits illustrated in the case of the
        binomial", Biometrika 1934.
    """
    least = beta.ppf(error, hits, trials - hits + 1) if hits else 0.0
    most = beta.ppf(1 - error, hits + 1, trials - hits) if hits < trials else 1.0
    return float(least), float(most)


def epsilon_lower(
    inside: Scores, outside: Scores, delta: float, confidence: float = 0.95
) -> tuple[float, float]:
    """A lower bound on ε at δ, and the threshold of the test that gave it.

    A test says "inside" of a score beyond a threshold, on one side or the other. Its threshold is
    chosen on the first half of the scores; on the second, bounds on its two error rates bound ε,
    because (ε, δ)-DP allows a true positive rate of at most e^ε times the false one, and δ.

    Args:
        inside: a score of each run with the record, independent of each other; larger for "inside".
        outside: of each run without it.
        confidence: the chance that the bound is right.

    Returns:
        The bound, which is below 0 where the test tells nothing, and the threshold.
    """
    half_in, half_out = len(inside) // 2, len(outside) // 2
    chosen = (inside[:half_in], outside[:half_out])
    quantiles = np.quantile(np.concatenate(chosen), np.linspace(0, 1, THRESHOLDS))
    tests = [(float(threshold), sign) for threshold in quantiles for sign in (1, -1)]
    error = (1 - confidence) / 2

    def on_the_first(test: tuple[float, int]) -> float:
        return _bound(chosen[0], chosen[1], *test, delta, error)

    threshold, sign = max(tests, key=on_the_first)
    rest = inside[half_in:], outside[half_out:]
    return _bound(rest[0], rest[1], threshold, sign, delta, error), threshold


def _bound(
    inside: Scores, outside: Scores, threshold: float, sign: int, delta: float, error: float
) -> float:
    """By one test; either of its two bounds on error rates is wrong with that chance."""
    if sign < 0:  # "outside" below the threshold
        inside, outside = -outside, -inside
    hits, false = int((inside >= threshold * sign).sum()), int((outside >= threshold * sign).sum())
    least, _ = clopper_pearson(hits, len(inside), error)
    _, most = clopper_pearson(false, len(outside), error)
    return math.log(max(least - delta, 1e-12) / most)
