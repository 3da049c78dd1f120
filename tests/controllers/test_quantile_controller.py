"""It finds a quantile that is known, through noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import lognorm

from fedpriv.controllers.base import Controller
from tests.controllers.controller_rounds import make, setting_of, shares

SPREAD = 0.5  # of the logarithms of the units' norms
MEDIANS = np.array([0.05, 1.0, 20.0])


def run(controller: Controller, noise: float, rounds: int) -> np.ndarray:
    """Clip norms (rounds, K) where units' norms are log-normal."""
    drawn = np.random.default_rng(0)
    found = []
    for _ in range(rounds):
        clip_norms = np.asarray(controller.decide().clip_norms)
        within = lognorm.cdf(clip_norms, SPREAD, scale=MEDIANS) + drawn.normal(0, noise, 3)
        controller.see(shares(within))
        found.append(clip_norms)
    return np.array(found)


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
def test_it_comes_to_the_quantile_exactly_without_noise(target: float) -> None:
    found = run(make("quantile", target=target), noise=0.0, rounds=300)[-1]
    assert found == pytest.approx(lognorm.ppf(target, SPREAD, scale=MEDIANS), rel=1e-3)


@pytest.mark.parametrize("target", [0.2, 0.5, 0.9])
def test_through_noise_the_share_of_units_within_is_right_in_the_mean(target: float) -> None:
    """Of 400 rounds; the mean of their noise has a deviation of 0.01."""
    found = run(make("quantile", target=target), noise=0.2, rounds=600)[200:]
    within = lognorm.cdf(found, SPREAD, scale=MEDIANS)
    assert within.mean(0) == pytest.approx(target, abs=0.04)
    assert np.abs(within - target).mean() < 0.2


def test_a_step_is_as_published() -> None:
    controller = make("quantile", target=0.6, rate=0.3)
    before = np.asarray(controller.decide().clip_norms)
    controller.see(shares([0.1, 0.6, 1.0]))
    after = np.asarray(controller.decide().clip_norms)
    assert after / before == pytest.approx(np.exp([0.3 * 0.5, 0, -0.3 * 0.4]))


def test_one_round_moves_a_clip_norm_by_the_rate_at_most() -> None:
    controller = make("quantile", rate=0.2)
    before = np.asarray(controller.decide().clip_norms)
    controller.see(shares([-1e9, math.nan, math.inf]))
    after = np.asarray(controller.decide().clip_norms)
    assert after / before == pytest.approx(np.exp([0.2, 0, -0.2]))


def test_it_never_runs_away() -> None:
    controller = make("quantile", rate=10.0)
    before = np.asarray(controller.decide().clip_norms)
    for _ in range(9):
        controller.see(shares([0, 0.5, 1]))
    assert np.asarray(controller.decide().clip_norms) / before == pytest.approx([1e4, 1, 1e-4])


def test_weights_make_the_least_noise_for_its_clip_norms() -> None:
    controller = make("quantile")
    controller.see(shares([0, 0.5, 1]))
    decision = controller.decide()
    energy = np.asarray(decision.clip_norms) * np.sqrt(setting_of().sizes)
    assert decision.weights == pytest.approx(energy / energy.sum())


def test_it_asks_for_what_its_bits_cost() -> None:
    assert make("quantile", bits=0.1).bits == 0.1
