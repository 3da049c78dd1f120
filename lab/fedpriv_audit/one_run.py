"""A lower bound on ε from one training run with many canaries, each in or out by a coin.

An auditor guesses the coins of the canaries with the most extreme scores at both ends, and makes no
guess about the others. Under (ε, δ)-DP for adding or removing one canary, nobody has many of the
guesses right. Without δ, no more are right than randomised response with that ε would get right.

Source:
    Theorem 5.2 and its corollary for guesses that are right, wrong, or left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from fedpriv_audit.two_worlds import CONFIDENCE

Scores = npt.NDArray[np.float64]
Coins = npt.NDArray[np.bool_]
MOST = 50.0  # beyond it, no number of guesses tells one ε from the next
SHARES = (0.05, 0.1, 0.2, 0.5)  # shares of the canaries that are guessed


@dataclass(frozen=True)
class OneRun:
    """Hold what one run told.

    Attributes:
        epsilon_lower: the bound, at least 0.
        guesses: how many coins were guessed, at the share that gave the bound.
        correct: how many of these guesses were right.
    """

    epsilon_lower: float
    guesses: int
    correct: int


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound from above the chance of at least `correct` right guesses under (ε, δ)-DP.

    With f(v) = P[Binomial(guesses, e^ε / (1 + e^ε)) ≥ v] the bound is

        f(v) + 2 m δ max over i = 1, 2, … of (f(v - i) - f(v)) / i.

    Args:
        canaries: m, the number of all canaries, guessed or not. Each is in with a chance of one
            half.
    """
    right = float(expit(epsilon))
    reached = float(binom.sf(correct - 1, guesses, right))
    if not correct or not delta:
        return reached
    less = np.arange(1, correct + 1)
    slack = (binom.sf(correct - less - 1, guesses, right) - reached) / less
    return min(1.0, reached + 2 * canaries * delta * max(0.0, float(slack.max())))


def epsilon_lower(canaries: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """Return the largest ε that this many correct guesses rule out, or 0 if they rule out none.

    Args:
        error: the greatest chance that the bound is wrong.
    """

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - error

    if excess(0.0) >= 0:
        return 0.0
    if excess(MOST) < 0:
        return MOST
    return float(brentq(excess, 0.0, MOST, xtol=1e-9))


def audit(
    scores: Scores,
    inside: Coins,
    delta: float,
    confidence: float = CONFIDENCE,
    shares: Sequence[float] = SHARES,
) -> OneRun:
    """Return the best bound over several shares of guesses. The shares divide the error among them.

    Half of the guesses say "in", for the highest scores. The others say "out", for the lowest.

    Args:
        scores: (m,) scores of the canaries, higher for "in", computed without the coins of this
            run.
        inside: (m,) which coins fell on "in".
        confidence: the chance that the bound is right.
        shares: shares of the canaries to guess, fixed before anybody looked at the scores.
    """
    order, error = np.argsort(scores, kind="stable"), (1 - confidence) / len(shares)
    found = []
    for share in shares:
        each = max(1, round(share * len(scores) / 2))
        correct = int(inside[order[-each:]].sum() + (~inside[order[:each]]).sum())
        bound = epsilon_lower(len(scores), 2 * each, correct, delta, error)
        found.append(OneRun(bound, 2 * each, correct))
    return max(found, key=lambda one: one.epsilon_lower)
