"""A lower bound on ε from two worlds that differ in one record, each run many times.

Source:
    Jagielski, Ullman & Oprea, "Auditing Differentially Private Machine Learning: How Private is
    Private SGD?", NeurIPS 2020, with δ as in Nasr et al., "Tight Auditing of Differentially Private
    Machine Learning", USENIX Security 2023.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

Scores = npt.NDArray[np.float64]
Counts = int | npt.NDArray[np.int64]
CONFIDENCE = 0.95  # of every bound and interval of an audit
THRESHOLDS = 200  # thresholds that are tried on the first half
LEAST = 1e-12  # least value of a rate, so that its logarithm is finite


def clopper_pearson(hits: Counts, trials: int, error: float) -> tuple[Scores, Scores]:
    """Bound probabilities from below and above.

    Each bound is wrong with a chance of at most `error`.

    Args:
        hits: number of hits in `trials` trials, one count or several.

    Source:
        Clopper & Pearson, "The use of confidence or fiducial limits illustrated in the case of the
        binomial", Biometrika 1934.
    """
    hits = np.asarray(hits)
    least = beta.ppf(error, np.maximum(hits, 1), trials - hits + 1)
    most = beta.ppf(1 - error, hits + 1, np.maximum(trials - hits, 1))
    return np.where(hits > 0, least, 0.0), np.where(hits < trials, most, 1.0)


def epsilon_lower(
    inside: Scores, outside: Scores, delta: float, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return a lower bound on ε at δ, and the threshold of the test that gave it.

    A test says "inside" for a score beyond a threshold, on one side or the other. The threshold is
    chosen on the first half of the scores. On the second half, bounds on the two error rates bound
    ε, because (ε, δ)-DP allows a true positive rate of at most e^ε times the false one, plus δ.

    Args:
        inside: one independent score of each run with the record, larger for "inside".
        outside: the same for each run without the record.
        confidence: the chance that the bound is right.

    Returns:
        The bound, which is below 0 where the test tells nothing, and the threshold.
    """
    half_in, half_out = len(inside) // 2, len(outside) // 2
    chosen = np.concatenate([inside[:half_in], outside[:half_out]])
    thresholds = np.quantile(chosen, np.linspace(0, 1, THRESHOLDS))
    error = (1 - confidence) / 2
    found = {
        sign: _bounds(inside[:half_in], outside[:half_out], thresholds, sign, delta, error)
        for sign in (1, -1)
    }
    sign = max(found, key=lambda one: float(found[one].max()))
    threshold = thresholds[[int(found[sign].argmax())]]
    [bound] = _bounds(inside[half_in:], outside[half_out:], threshold, sign, delta, error)
    return float(bound), float(threshold[0])


def _bounds(
    inside: Scores, outside: Scores, thresholds: Scores, sign: int, delta: float, error: float
) -> Scores:
    """Bound ε by a test at each threshold.

    Each of its two error rates is wrong with chance `error`.

    Args:
        sign: 1 for tests that say "inside" above the threshold, -1 for "outside" below it.
    """
    if sign < 0:  # the false negatives of one test are the false positives of the other
        inside, outside = -outside, -inside
    beyond = sign * thresholds[:, None]
    hits, false = (inside >= beyond).sum(1), (outside >= beyond).sum(1)
    least, _ = clopper_pearson(hits, len(inside), error)
    _, most = clopper_pearson(false, len(outside), error)
    bounds: Scores = np.log(np.maximum(least - delta, LEAST) / most)
    return bounds
