"""Its scales are those that a numeric optimiser finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedpriv.controllers.base import Controller, Setting
from tests.controllers.controller_rounds import make, scales, seen_of, setting_of
from tests.example_counts import examples

CLIP_NORM = 0.5
positive = st.floats(1e-2, 1e2)


def after(controller: Controller, squared: list[float], deviation: float = 0.0) -> np.ndarray:
    """The scales once it has seen this."""
    decision = controller.decide(1)
    deviations = [deviation] * len(squared)
    controller.see(seen_of(1, decision, squared, deviation=deviations))
    return scales(controller.decide(2), CLIP_NORM)


@settings(max_examples=examples(50), deadline=None)
@given(squared=st.lists(positive, min_size=3, max_size=3))
def test_its_scales_are_the_optimum(squared: list[float]) -> None:
    """Least Σ size / a² where Σ a² m = C², by a numeric optimiser that knows nothing of algebra."""
    found = after(make("geometry", floor=1e-9), squared)
    sizes = np.asarray(setting_of().sizes, float)
    energy = CLIP_NORM**2 * np.asarray(squared) / sum(squared)

    def noise(log_scales: np.ndarray) -> float:
        """With the scales made as large as the constraint allows."""
        squares = np.exp(2 * log_scales)
        return float(np.log((sizes / squares).sum() * (squares * energy).sum()))

    best = minimize(
        noise, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}
    )
    assert noise(np.log(found)) <= best.fun + 1e-9
    assert (found**2 * energy).sum() == pytest.approx(CLIP_NORM**2)
    assert (sizes / found**2).sum() <= sizes.sum() * (1 + 1e-9)  # never more than without


@given(squared=st.lists(positive, min_size=3, max_size=3), factor=st.floats(1e-6, 1e6))
def test_only_proportions_count(squared: list[float], factor: float) -> None:
    one = after(make("geometry"), squared, deviation=0.1)
    other = after(make("geometry"), [factor * value for value in squared], 0.1 * factor**0.5)
    assert other == pytest.approx(one)


def test_at_first_and_with_parameters_all_alike_it_is_the_job_without() -> None:
    controller = make("geometry")
    assert scales(controller.decide(1), CLIP_NORM) == pytest.approx(1)
    assert after(controller, [1.0, 3.0, 6.0]) == pytest.approx(1)


def test_nothing_but_noise_leads_almost_nowhere() -> None:
    """In 200 rounds of noise alone, no scale is far from 1."""
    setting, drawn = setting_of((1000, 3000, 6000)), np.random.default_rng(0)
    controller, found = make("geometry", setting), []
    for number in range(1, 201):
        squared = pure_noise(setting, drawn)
        controller.see(seen_of(number, controller.decide(number), squared, deviation=[1.0] * 3))
        found.append(scales(controller.decide(number + 1), CLIP_NORM))
    assert np.min(found) > 0.6 and np.max(found) < 2


def pure_noise(setting: Setting, drawn: np.random.Generator) -> list[float]:
    return [float((drawn.normal(size=size) ** 2).sum()) - size for size in setting.sizes]


def test_what_noise_alone_would_make_is_counted_for_all_rounds() -> None:
    """Twice the same, of which the first counts as 0.9 and its variance as 0.81."""
    controller = make("geometry", decay=0.9, floor=1e-9)
    after(controller, [4.0, 0.0, 0.0], deviation=0.2)
    found = after(controller, [4.0, 0.0, 0.0], deviation=0.2)
    error = np.sqrt(1.81 * 2 * 100 * 0.2**4)
    shares = np.array([0.1, 0.3, 0.6])
    energy = np.array([7.6, 0, 0]) + error * shares
    expected = np.sqrt(np.sqrt(shares / energy) / np.sqrt(shares * energy).sum() * energy.sum())
    assert found == pytest.approx(expected)


def test_what_stands_out_of_the_noise_counts_as_it_is() -> None:
    assert after(make("geometry"), [1.0, 1.0, 1.0], deviation=1e-3) == pytest.approx(
        after(make("geometry"), [1.0, 1.0, 1.0]), rel=1e-3
    )


def test_a_group_without_gradients_counts_as_the_floor_says() -> None:
    found = after(make("geometry", floor=0.01), [1.0, 0.0, -5.0])
    shares = np.array([0.1, 0.3, 0.6])
    energy = np.array([1.0, 0.003, 0.006])
    expected = np.sqrt(np.sqrt(shares / energy) / np.sqrt(shares * energy).sum() * energy.sum())
    assert found == pytest.approx(expected)


def test_it_forgets_as_fast_as_it_is_told() -> None:
    fast, slow = make("geometry", decay=0.0), make("geometry", decay=0.9)
    for controller in (fast, slow):
        after(controller, [100.0, 1.0, 1.0])
    last = make("geometry")
    assert after(fast, [1.0, 1.0, 1.0]) == pytest.approx(after(last, [1.0, 1.0, 1.0]))
    expected = after(make("geometry"), [0.9 * 100 + 1, 1.9, 1.9])
    assert after(slow, [1.0, 1.0, 1.0]) == pytest.approx(expected)


def test_it_is_clipped_as_a_whole_and_needs_no_bits() -> None:
    controller = make("geometry")
    assert controller.together and controller.bits == 0
