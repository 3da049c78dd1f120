"""Membership scores and what they are worth."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpriv.plain_training.scores import area_under_curve
from fedpriv_audit import membership


def made_up(models: int, records: int, gain: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """How far losses fell: by how easy a record is, by chance, and by `gain` for a member."""
    rng = np.random.default_rng(seed)
    inside = rng.random((models, records)) < 0.5
    easy = rng.normal(size=records) * 3
    return easy + rng.normal(size=inside.shape) + gain * inside, inside


def test_references_see_what_the_base_model_alone_does_not() -> None:
    fallen, inside = made_up(4, 400, 2.0, 0)
    plain = membership.area(fallen.ravel(), inside.ravel())
    scores = membership.against_references(fallen, inside)
    assert plain < 0.7
    assert membership.area(scores.ravel(), inside.ravel()) > 0.75


def test_references_find_nothing_where_there_is_nothing() -> None:
    """Also not by how many references a record happens to have."""
    areas = []
    for seed in range(40):
        fallen, inside = made_up(3, 200, 0.0, seed)
        scores = membership.against_references(fallen, inside)
        areas.append(membership.area(scores.ravel(), inside.ravel()))
    assert np.mean(areas) == pytest.approx(0.5, abs=4 * np.std(areas) / 40**0.5)


def test_a_model_is_scored_without_its_own_coins() -> None:
    fallen, inside = made_up(4, 50, 1.0, 0)
    other = inside.copy()
    other[2] = ~other[2]
    scores = [membership.against_references(fallen, coins)[2] for coins in (inside, other)]
    assert np.array_equal(*scores)


def test_one_model_is_held_against_the_base_alone() -> None:
    fallen, inside = made_up(1, 20, 1.0, 0)
    assert np.array_equal(membership.against_references(fallen, inside), fallen)


def test_the_area_is_that_of_the_library() -> None:
    rng = np.random.default_rng(0)
    scores, inside = rng.integers(0, 5, 60).astype(float), rng.random(60) < 0.4
    expected = area_under_curve(torch.tensor(scores), torch.tensor(inside).long())
    assert membership.area(scores, inside) == pytest.approx(expected)


@pytest.mark.slow
def test_the_interval_holds_as_often_as_it_says() -> None:
    """Of scores one deviation apart the area is Φ(1/√2) = 0.760."""
    held = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        inside = rng.random(120) < 0.5
        low, high = membership.interval(membership.area, rng.normal(size=120) + inside, inside)
        held += low <= 0.7602 <= high
    assert held >= 12  # 14 of 15 are expected


def test_true_positives_at_a_low_false_rate() -> None:
    scores = np.concatenate([np.arange(100.0), np.full(50, 97.5)])
    inside = np.arange(150) >= 100
    assert membership.true_positives(scores, inside, 0.02)[0] == 1.0
    assert membership.true_positives(scores, inside, 0.01)[0] == 0.0
    low, high = membership.true_positives(scores, inside, 0.02)[1:]
    assert low == pytest.approx(0.9289, abs=1e-3)
    assert high == 1.0


@pytest.mark.parametrize("inside", [[True, True], [False, False], []])
def test_an_interval_needs_members_and_others(inside: list[bool]) -> None:
    with pytest.raises(ValueError, match="members and others"):
        membership.interval(membership.area, np.zeros(len(inside)), np.array(inside, dtype=bool))
