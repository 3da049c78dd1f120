"""Denoiser and optimiser, one after the other and each only where it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.errors import RawValueError
from fedpriv.gradients.denoise import Denoiser
from fedpriv.privacy.mechanism.privatised import Privatised, public, received
from fedpriv.training.config import DenoiseSection, GateSection, OptimizerSection
from fedpriv.training.gate import Gate
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv.training.post_processing import Found, post_processors
from fedpriv.training.update import Aggregate, Update

SHAPES = [(4, 50), (50, 4), (3,)]
SIZE = 403


def start() -> Privatised[Any]:
    return public(np.zeros(SIZE, dtype=np.float32))


def make(name: Any = "adamw", gate: Gate | None = None, **denoise: Any) -> Update:
    rates = None if gate is None else GateSection(data=Path("x"), rates=gate.rates)
    processors = post_processors(DenoiseSection(**denoise), SHAPES, rates)
    return Update(OptimizerSection(name=name), start(), processors, gate)


def step(made: Update, gradient: Privatised[Any], number: int = 1) -> Privatised[Any]:
    return made.step(Aggregate(gradient, 1.0, 1000.0), number=number, lr=0.1)


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
        denoised = denoiser(gradient, 1.0).value
        wanted = plain.step(received(denoised.vector), lr=0.1)
        assert np.array_equal(found.value, wanted.value)
        assert made.denoised == Found(denoised.on, 2, denoiser.by_chance) and denoised.on == 2


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


def gate(prefer: Callable[[Any], float], **settings: Any) -> Gate:
    """Judges a move by its values alone."""
    records: Any = list(range(50))
    return Gate(
        GateSection(data=Path("x"), **settings),
        records,
        lambda _, vector: prefer(vector.value),
        seed=0,
    )


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("taken", ["raw", "denoised"])
def test_the_move_that_is_taken_is_as_if_there_were_no_other(name: str, taken: str) -> None:
    """Values and state: what was tried and not taken leaves nothing behind."""
    seen: list[Any] = []  # raw comes first
    sign = {"raw": 1, "denoised": -1}[taken]

    def judge(vector: Any) -> float:
        seen.append(vector)
        return float(sign * len(seen))

    made = make(name, gate(judge), where="gate")
    plain = {"raw": make(name), "denoised": make(name, where="server")}
    (gradient,) = gradients(1)
    found = step(made, gradient)
    assert made.choice is not None
    assert made.choice.losses.keys() == plain.keys()
    assert made.choice.taken == taken
    wanted = plain[taken]
    assert np.array_equal(found.value, step(wanted, gradient).value)
    state, expected = made.state().value, wanted.state().value
    assert state.keys() == expected.keys()
    assert all(bool((state[key] == expected[key]).all()) for key in state)


def test_a_judge_that_fails_leaves_everything_as_it_was() -> None:
    def judge(vector: Any) -> float:
        raise KeyboardInterrupt

    made = make("adamw", gate(judge), where="gate")
    with pytest.raises(KeyboardInterrupt):
        step(made, gradients(1)[0])
    assert not made.vector.value.any()
    assert made.state().value.keys() == {"vector"}


def test_rates_are_moves_of_their_own() -> None:
    made = make("sgd", gate(lambda v: abs(float(v[0]) + 0.7), rates=(1.0, 0.5, 2.0)))
    (gradient,) = gradients(1)
    found = step(made, gradient)
    assert made.choice is not None
    assert made.choice.losses.keys() == {"raw", "raw × 0.5", "raw × 2.0"}
    assert made.choice.taken == "raw × 2.0"
    assert np.allclose(found.value, -0.2 * gradient.value)
