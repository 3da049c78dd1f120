"""Filter, denoiser and optimiser, one after the other and each only where it was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpriv.config.job import DenoiseSection, OptimizerSection
from fedpriv.errors import RawValueError
from fedpriv.gradients.denoise import Denoiser
from fedpriv.gradients.low_pass import LowPass
from fedpriv.privacy.privatised import Privatised, public, received
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv.training.update import Found, Update

SHAPES = [(4, 50), (50, 4), (3,)]
SIZE = 403
STEP = {"lr": 0.1, "noise_variance": 1.0}


def start() -> Privatised[Any]:
    return public(np.zeros(SIZE, dtype=np.float32))


def make(name: Any = "adamw", **denoise: Any) -> Update:
    return Update(OptimizerSection(name=name), DenoiseSection(**denoise), start(), SHAPES)


def gradients(count: int) -> list[Privatised[Any]]:
    """A signal of rank one in every matrix, with unit noise."""
    generator = np.random.default_rng(0)
    signal = np.concatenate([np.full(200, 3.0), np.full(200, -3.0), np.zeros(3)])
    drawn = signal + generator.standard_normal((count, SIZE))
    return [received(row.astype(np.float32)) for row in drawn]


def test_without_anything_it_is_the_optimiser() -> None:
    plain, made = VectorOptimizer(OptimizerSection(), start()), make()
    for gradient in gradients(3):
        wanted, found = plain.step(gradient, **STEP), made.step(gradient, **STEP)
        assert np.array_equal(wanted.value, found.value)
    assert made.denoised is None
    assert made.state().value.keys() == plain.state().value.keys()


def test_it_filters_then_denoises_with_what_noise_is_left_and_then_moves() -> None:
    settings = DenoiseSection(where="server", low_pass=0.6)
    made = Update(OptimizerSection(name="sgd"), settings, start(), SHAPES)
    plain = VectorOptimizer(OptimizerSection(name="sgd"), start())
    low_pass, denoiser = LowPass(0.6), Denoiser(SHAPES, settings)
    for gradient in gradients(4):
        found = made.step(gradient, **STEP)
        filtered, noise = low_pass(gradient, 1.0)
        denoised = denoiser(filtered, noise**0.5).value
        wanted = plain.step(received(denoised.vector), **STEP)
        assert np.array_equal(found.value, wanted.value)
        assert made.denoised == Found(denoised.on, 2, denoiser.by_chance) and denoised.on == 2


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("low_pass", [0.0, 0.6])
def test_a_state_goes_on_where_it_was(name: str, low_pass: float) -> None:
    options: dict[str, Any] = {"where": "server", "low_pass": low_pass}
    straight, first, second = (make(name, **options) for _ in range(3))
    second.restore(first.state())  # before any step
    moves = gradients(5)
    for gradient in moves:
        straight.step(gradient, **STEP)
    for gradient in moves[:3]:
        first.step(gradient, **STEP)
    second.restore(first.state())
    for gradient in moves[3:]:
        second.step(gradient, **STEP)
    assert np.array_equal(second.vector.value, straight.vector.value)


@pytest.mark.parametrize("options", [{}, {"where": "server"}, {"low_pass": 0.5}])
def test_a_raw_gradient_is_refused_and_changes_nothing(options: dict[str, Any]) -> None:
    made = make(**options)
    with pytest.raises(RawValueError):
        made.step(np.ones(SIZE, dtype=np.float32), **STEP)  # type: ignore[arg-type]
    assert not made.vector.value.any()
