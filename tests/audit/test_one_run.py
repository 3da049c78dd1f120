"""The one-run audit's statistics, against the paper's figures and a mechanism known exactly."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv_audit.one_run import audit, epsilon_lower, p_value

# Canaries, guesses, right ones, δ: the bound with an error of 5%.
PUBLISHED = [
    ((1000, 100, 75, 1e-4), 0.673),  # arXiv 2305.08846, appendix D
    ((100_000, 1510, 1439, 1e-5), 2.675),  # section 7, figure 11
]


@pytest.mark.parametrize(("case", "bound"), PUBLISHED)
def test_the_figures_of_the_paper(case: tuple[int, int, int, float], bound: float) -> None:
    assert epsilon_lower(*case, 0.05) == pytest.approx(bound, abs=1e-3)


def by_hand(canaries: int, guesses: int, correct: int, odds: int, delta: Fraction) -> Fraction:
    """The theorem in whole fractions, where e^ε is a whole number."""
    right = Fraction(odds, odds + 1)

    def reached(least: int) -> Fraction:
        terms = (
            comb(guesses, k) * right**k * (1 - right) ** (guesses - k)
            for k in range(max(0, least), guesses + 1)
        )
        return sum(terms, Fraction(0))

    whole = reached(correct)
    slack = max(
        ((reached(correct - i) - whole) / i for i in range(1, canaries + 1)), default=Fraction(0)
    )
    return min(Fraction(1), whole + 2 * canaries * delta * slack)


@given(
    canaries=st.integers(1, 14),
    guessed=st.floats(0, 1),
    hit=st.floats(0, 1),
    odds=st.integers(1, 9),
    thousandths=st.integers(0, 30),
)
def test_the_theorem_computed_in_fractions(
    canaries: int, guessed: float, hit: float, odds: int, thousandths: int
) -> None:
    guesses = max(1, round(guessed * canaries))
    correct = round(hit * guesses)
    expected = by_hand(canaries, guesses, correct, odds, Fraction(thousandths, 1000))
    found = p_value(canaries, guesses, correct, float(np.log(odds)), thousandths / 1000)
    assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.0, 0.02])
def test_it_is_wrong_no_more_often_than_it_says(delta: float) -> None:
    """Every coin by randomised response with ε = 1, or in clear with a chance of δ."""
    rng, right, runs, canaries = np.random.default_rng(0), np.e / (1 + np.e), 2000, 60
    inside = rng.random((runs, canaries)) < 0.5
    told = inside ^ (rng.random((runs, canaries)) > right)
    clear = rng.random((runs, canaries)) < delta
    # What is told in clear comes first and last, so it is among the guesses.
    scores = np.where(clear, 4.0 * inside - 2, told) + 0.01 * rng.random((runs, canaries))
    pairs = zip(scores, inside, strict=True)
    found = [audit(*pair, delta, 0.95, shares=(0.5,)).epsilon_lower for pair in pairs]
    wrong = np.mean([bound > 1 for bound in found])
    assert wrong <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert not delta or np.mean([bound > 1 for bound in found]) < 0.05


def test_a_run_that_tells_everything_is_limited_by_its_canaries_alone() -> None:
    inside = np.random.default_rng(0).random(1000) < 0.5
    found = audit(inside.astype(float), inside, 1e-5)
    assert found.guesses == found.correct == 500
    assert 4 < found.epsilon_lower < 5
    assert audit(np.zeros(1000), inside, 1e-5).epsilon_lower < 0.7
    assert audit(-inside.astype(float), inside, 1e-5).epsilon_lower == 0
