"""Membership inference: scores that are fair to easy and to hard records, and what they tell.

A loss by itself says more about a record than about its membership. So the loss is compared with
what it would be if the record had not been trained on. That is estimated with the base model, or
with *reference* models that were trained on other halves of the same records.

Source:
    Watson et al., "On the Importance of Difficulty Calibration in Membership Inference Attacks",
    ICLR 2022; Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022
    (LiRA). This is its offline form with one variance for all records, which the authors use for
    few references, too. Their measure is the true positives at a low false positive rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from fedpriv_audit.two_worlds import CONFIDENCE, clopper_pearson

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
RESAMPLES = 1000


def against_references(fallen: Scores, inside: Coins) -> Scores:
    """Subtract from each fall what other models say it would be without the record: (K, N).

    The estimate is the mean over the other models that were not trained on the record. The mean
    over all records joins it with the weight of one more model. With one or two references that is
    nearer to the truth than either mean, and there may be no reference at all.

    Args:
        fallen: (K, N) how far each model's loss on each record fell from the base model's.
        inside: (K, N) which model was trained on which record, by independent coins. The row of a
            model does not use that model's own coins.
    """
    scores = np.empty_like(fallen)
    for target in range(len(fallen)):
        others = np.arange(len(fallen)) != target
        without = ~inside & others[:, None]
        if not without.any():
            scores[target] = fallen[target]
            continue
        usual = fallen[without].mean()
        total = (fallen * without).sum(0)
        scores[target] = fallen[target] - (total + usual) / (without.sum(0) + 1)
    return scores


def area(scores: Scores, inside: Coins) -> float:
    """Return the area under the ROC curve: P(score of a member > score of another), ties half.

    There have to be members and others. Computed by the Mann-Whitney statistic (Hanley & McNeil
    1982).
    """
    ranks, members = rankdata(scores), int(inside.sum())
    above = float(ranks[inside].sum()) - members * (members + 1) / 2
    return above / (members * (inside.size - members))


def interval(
    measure: Callable[[Scores, Coins], float], scores: Scores, inside: Coins
) -> tuple[float, float]:
    """Bound a measure with `CONFIDENCE`, by resampling records together with all their scores.

    This is the percentile bootstrap over records, because scores of one record under several models
    depend on each other.

    Args:
        scores: (K, N), or (N,) for one model.
        inside: members, in the same shape.

    Raises:
        ValueError: there are no members, or no others.
    """
    scores, inside = np.atleast_2d(scores), np.atleast_2d(inside)
    if inside.all() or not inside.any():
        raise ValueError("Expected members and others.")
    rng, found = np.random.default_rng(0), list[float]()
    while len(found) < RESAMPLES:
        drawn = rng.integers(0, scores.shape[1], scores.shape[1])
        members = inside[:, drawn].ravel()
        if 0 < members.sum() < members.size:
            found.append(measure(scores[:, drawn].ravel(), members))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def true_positives(scores: Scores, inside: Coins, false_rate: float) -> tuple[float, float, float]:
    """Return the share of members found when at most `false_rate` of the others are accused.

    Returns:
        The share, and Clopper-Pearson bounds on it at the threshold that was used, with
        `CONFIDENCE`.
    """
    others = np.sort(scores[~inside])
    allowed = math.floor(false_rate * len(others))
    threshold = others[len(others) - 1 - allowed]  # at most `allowed` others are beyond it
    members = scores[inside]
    hits = int((members > threshold).sum())
    low, high = clopper_pearson(hits, len(members), (1 - CONFIDENCE) / 2)
    return hits / len(members), float(low), float(high)
