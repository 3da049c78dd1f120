"""What is said beside the models of a site."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.personal.evaluation import Row, _chance, _verdict, _worse_than_base
from fedpriv.plain_training.scores import Scored, Scores


@pytest.mark.parametrize(("alone", "said"), [(0.70, True), (0.6904, False), (0.6, False)])
def test_a_model_that_training_made_worse_is_told(alone: float, said: bool) -> None:
    rows = [Row("base", Scores(0.69, 0.5)), Row("alone", Scores(alone, 0.5))]
    assert bool(_worse_than_base(rows)) == said
    assert _worse_than_base(rows[:1]) == []


UNITS = range(8)


def scored(losses: list[float]) -> Scored:
    numbers = np.array(losses * 2)
    return Scored(Scores(float(numbers.mean()), 0.5), numbers, np.ones(len(numbers)))


@pytest.mark.parametrize(
    ("served", "said"),
    [
        ([1.0, 1.1, 0.9, 1.0], "Joining paid here: "),
        ([3.0, 3.1, 2.9, 3.0], "Joining did not pay here: "),
        ([1.0, 3.1, 2.9, 1.0], "Whether joining paid can't be told from 8 held-out units: "),
    ],
)
def test_the_verdict_is_against_the_better_of_what_a_site_has_by_itself(
    served: list[float], said: str
) -> None:
    there = {"alone": scored([2.5] * 4), "two alone": scored([2.0, 2.0, 2.1, 1.9])}
    found = _verdict(there | {"all three": scored(served)}, "all three", UNITS)
    assert found.startswith(said)
    assert "(two alone) 2.000" in found and "(all three)" in found
    better = {"alone": scored([1.9, 1.9, 2.0, 1.8]), "two alone": there["two alone"]}
    assert "(alone) 1.900" in _verdict(better | {"all three": scored(served)}, "all three", UNITS)


def test_a_site_model_without_the_federation_says_so() -> None:
    there = {"alone": scored([2.0] * 4), "two alone": scored([1.9] * 4)}
    assert "has nothing of the federation" in _verdict(there, "alone", UNITS)


def test_what_chance_makes_is_twice_the_error_of_a_ratio() -> None:
    """Against many draws of records, with as many targets as they have."""
    drawn = np.random.default_rng(1)
    gains = []
    errors = []
    for _ in range(400):
        targets = drawn.integers(1, 20, size=60).astype(float)
        ours = drawn.normal(2.0, 1.0, size=60) * targets
        theirs = ours + drawn.normal(0.0, 0.5, size=60) * targets
        both = {
            "ours": Scored(Scores(ours.sum() / targets.sum(), 0.0), ours, targets),
            "alone": Scored(Scores(theirs.sum() / targets.sum(), 0.0), theirs, targets),
        }
        gains.append(both["alone"].scores.eval_loss - both["ours"].scores.eval_loss)
        errors.append(_chance(both["ours"], both["alone"], range(60)))
    # each is known to 1/√800, and a ratio's error is its own to the first order of 1/60
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(
        2.001 * np.std(gains), rel=0.2
    )  # t of 59


def test_what_one_person_wrote_several_times_counts_as_one() -> None:
    """Without any difference, how often a difference is taken for one, of alike records."""
    drawn = np.random.default_rng(2)
    units = np.repeat(np.arange(30), 4)
    ones = np.ones(120)
    found = 0
    for _ in range(1000):
        gap = np.repeat(drawn.normal(size=30), 4) + 0.5 * drawn.normal(size=120)
        ours = Scored(Scores(3.0, 0.0), 3.0 * ones, ones)
        theirs = Scored(Scores(3.0 + gap.mean(), 0.0), 3.0 + gap, ones)
        found += abs(gap.mean()) > _chance(ours, theirs, units.tolist())
    assert found <= 50 + 4 * 7  # 5% of 1,000, and four deviations


def test_of_few_units_nothing_is_concluded() -> None:
    there = {"alone": scored([2.5] * 4), "two alone": scored([2.0] * 4)}
    for units in ([0] * 8, [*range(7), 6]):
        found = _verdict(there | {"all three": scored([1.0] * 4)}, "all three", units)
        assert found.startswith(f"Whether joining paid can't be told from {len(set(units))}")
        assert "chance" not in found
