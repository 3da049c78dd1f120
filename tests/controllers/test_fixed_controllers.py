"""Controllers that decide the same in every round."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from fedpriv.errors import ConfigError
from tests.controllers.controller_rounds import make, scales, setting_of, shares


def test_with_one_group_it_is_the_job_without_a_controller() -> None:
    decision = make("fixed", setting_of((7,), clip_norm=0.3)).decide()
    assert (decision.clip_norms, decision.weights) == ((0.3,), (1.0,))


def test_with_several_every_coordinate_has_the_plans_noise() -> None:
    decision = make("fixed").decide()
    assert scales(decision, 0.5) == pytest.approx(1)
    assert decision.weights == pytest.approx([0.1, 0.3, 0.6])
    noise = np.asarray(decision.clip_norms) / np.sqrt(decision.weights)
    assert noise == pytest.approx(0.5)


def test_clip_norms_by_name_get_the_weights_of_least_noise() -> None:
    clip_norms = {"group 0": 2.0, "group 1": 0.1, "group 2": 0.7}
    decision = make("fixed", clip_norms=clip_norms).decide()
    assert decision.clip_norms == (2.0, 0.1, 0.7)
    sizes, squares = np.array([10, 30, 60]), np.array([2.0, 0.1, 0.7]) ** 2

    def noise(logits: np.ndarray) -> float:
        weights = np.exp(logits) / np.exp(logits).sum()
        return float(np.log((sizes * squares / weights).sum()))

    best = minimize(noise, np.zeros(3), tol=1e-12)
    assert decision.weights == pytest.approx(np.exp(best.x) / np.exp(best.x).sum(), rel=1e-4)


def test_a_group_that_is_not_named_keeps_its_clip_norm() -> None:
    decision = make("fixed", clip_norms={"group 1": 0.1}).decide()
    usual = make("fixed").decide().clip_norms
    assert decision.clip_norms == (usual[0], 0.1, usual[2])


def test_a_group_that_there_is_not_is_named() -> None:
    with pytest.raises(ConfigError, match=r"clip_norms.*'q_proj'.*group 0, group 1"):
        make("fixed", clip_norms={"q_proj": 1.0})


@pytest.mark.parametrize("sizes", [(5,), (10, 30, 60)])
def test_normalised_parts_have_the_size_of_clipped_ones(sizes: tuple[int, ...]) -> None:
    """A site's arithmetic on one unit, and the server's."""
    controller, setting = make("normalise", setting_of(sizes)), setting_of(sizes)
    decision = controller.decide()
    scale, limits = scales(decision, 0.5), 0.5 * np.sqrt(decision.weights)
    usual = 0.5 * np.sqrt(setting.shares)
    for length in (0.01, 1.0, 100.0):
        norms = length * np.arange(1.0, len(sizes) + 1)
        clipped = np.minimum(scale * norms, limits)
        assert controller.lift * clipped / scale == pytest.approx(usual)
    noise = controller.lift * np.asarray(decision.clip_norms) / np.sqrt(decision.weights)
    assert noise == pytest.approx(0.5)


def test_nothing_is_shrunk_below_the_least_clip_norm() -> None:
    controller = make("normalise", setting_of((1, 99), clip_norm=1e-4))
    decision = controller.decide()
    assert min(decision.clip_norms) == pytest.approx(1e-6)
    assert scales(decision, 1e-4) == pytest.approx(controller.lift)


@pytest.mark.parametrize("name", ["fixed", "normalise"])
def test_nothing_that_happens_changes_it(name: str) -> None:
    controller = make(name)
    before = controller.decide()
    controller.see(shares([0, 1, 0.5]))
    assert controller.decide() == before
    assert controller.state().value == {}
