"""Membership inference: scores that are fair to easy and to hard records, and what they tell.

A loss by itself says more of a record than of its membership. So the loss is held against what it
would be had the record not been trained on: with the base model, or with *reference* models that
were trained on other halves of the same records.

Source:
    Watson et al., "On the Importance of Difficulty Calibration in Membership Inference Attacks",
    ICLR 2022; Carlini et al., "Membership Inference Attacks From First Principles", IEEE S&P 2022
    (LiRA, of which this is the offline form with one variance for all records, which is theirs for
    few references, too), and their measure: true positives at a low false positive rate.
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

    That is the mean over the other models that were not trained on the record, and with the weight
    of one more model the mean over all records: with one or two references that is nearer to the
    truth than either mean, and there may be no reference.

    Args:
        fallen: (K, N) how far each model's loss on each record fell from the base model's.
        inside: (K, N) which model was trained on which record, by independent coins. A model's own
            coins are not used for its row.
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
    """Return P(score of a member > score of another), ties half: the area under the ROC curve.

    There have to be members and others. The Mann-Whitney statistic (Hanley & McNeil 1982).
    """
    ranks, members = rankdata(scores), int(inside.sum())
    above = float(ranks[inside].sum()) - members * (members + 1) / 2
    return above / (members * (inside.size - members))


def interval(
    measure: Callable[[Scores, Coins], float], scores: Scores, inside: Coins
) -> tuple[float, float]:
    """Bound a measure, with `CONFIDENCE`, by drawing records again, with all scores of each.

    The percentile bootstrap over records, because scores of one record under several models
    depend on each other.

    Args:
        scores: (K, N), or (N,) of one model.
        inside: of the same shape.

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
    """Return the share of members found when at most `false_rate` of the others is accused.

    Returns:
        The share, and bounds of Clopper and Pearson on it at the threshold that was used, with
        `CONFIDENCE`.
    """
    others = np.sort(scores[~inside])
    allowed = math.floor(false_rate * len(others))
    threshold = others[len(others) - 1 - allowed]  # so many are beyond it, or fewer
    members = scores[inside]
    hits = int((members > threshold).sum())
    low, high = clopper_pearson(hits, len(members), (1 - CONFIDENCE) / 2)
    return hits / len(members), float(low), float(high)
