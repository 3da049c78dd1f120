"""Denoiser and optimiser, one after the other and each only where it was asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedpriv.errors import RawValueError
from fedpriv.privacy.mechanism.privatised import Privatised, public, received
from fedpriv.public_update.config import DenoiseSection, OptimizerSection
from fedpriv.public_update.denoise import Denoiser, Found
from fedpriv.public_update.update import Aggregate, Update, VectorOptimizer, denoise_of

SHAPES = [(4, 50), (50, 4), (3,)]
SIZE = 403


def start() -> Privatised[Any]:
    return public(np.zeros(SIZE, dtype=np.float32))


def make(name: Any = "adamw", **denoise: Any) -> Update:
    settings = DenoiseSection(**denoise)
    return Update(OptimizerSection(name=name), start(), denoise_of(settings, SHAPES))


def step(made: Update, gradient: Privatised[Any]) -> Privatised[Any]:
    return made.move(Aggregate(gradient, 1.0, 1000.0), lr=0.1)


def gradients(count: int) -> list[Privatised[Any]]:
    """A signal of rank one in every matrix, with unit noise."""
    generator = np.random.default_rng(0)
    signal = np.concatenate([np.full(200, 3.0), np.full(200, -3.0), np.zeros(3)])
    drawn = signal + generator.standard_normal((count, SIZE))
    return [received(row.astype(np.float32)) for row in drawn]


def test_without_anything_it_is_the_optimiser() -> None:
    plain, made = VectorOptimizer(OptimizerSection(), start()), make()
    for gradient in gradients(3):
        wanted, found = plain.step(gradient, lr=0.1), step(made, gradient)
        assert np.array_equal(wanted.value, found.value)
    assert made.denoised is None
    assert made.state().value.keys() == plain.state().value.keys()


def test_it_denoises_and_then_moves() -> None:
    settings = DenoiseSection(where="server")
    made = make("sgd", where="server")
    plain = VectorOptimizer(OptimizerSection(name="sgd"), start())
    denoiser = Denoiser(SHAPES, settings)
    for gradient in gradients(4):
        found = step(made, gradient)
        wanted = plain.step(received(denoiser(gradient, 1.0).value), lr=0.1)
        assert np.array_equal(found.value, wanted.value)
        assert made.denoised == denoiser.found == Found(2, 2, denoiser.by_chance)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_state_goes_on_where_it_was(name: str) -> None:
    straight, first, second = (make(name, where="server") for _ in range(3))
    second.restore(first.state())  # before any step
    moves = gradients(5)
    for gradient in moves:
        step(straight, gradient)
    for gradient in moves[:3]:
        step(first, gradient)
    second.restore(first.state())
    for gradient in moves[3:]:
        step(second, gradient)
    assert np.array_equal(second.vector.value, straight.vector.value)


@pytest.mark.parametrize("options", [{}, {"where": "server"}])
def test_a_raw_gradient_is_refused_and_changes_nothing(options: dict[str, Any]) -> None:
    made = make(**options)
    with pytest.raises(RawValueError):
        step(made, np.ones(SIZE, dtype=np.float32))  # type: ignore[arg-type]
    assert not made.vector.value.any()
