from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.errors import RawValueError
from fedpriv.privacy.mechanism.privatised import TrustModel, public, received, restored
from fedpriv.public_update import update as optimizer_module
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import VectorOptimizer

START = np.linspace(-1, 1, 5, dtype=np.float32)
ADAMW = ("step", "exp_avg", "exp_avg_sq")


def make(name: Any = "sgd", **settings: Any) -> VectorOptimizer:
    return VectorOptimizer(OptimizerSection(name=name, lr=0.1, **settings), public(START))


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_it_moves_as_torchs_own_does(
    name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own holds the vector in one piece."""
    monkeypatch.setattr(optimizer_module, "BLOCK", block)
    found = make(name, momentum=0.9, weight_decay=0.01)
    parameter = torch.nn.Parameter(torch.from_numpy(START.copy()))
    options: dict[str, Any] = {"momentum": 0.9} if name == "sgd" else {}
    kinds = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    plain = kinds[name]([parameter], lr=0.1, weight_decay=0.01, **options)
    for gradient in np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32):
        parameter.grad = torch.from_numpy(gradient)
        plain.step()
        moved = found.step(received(gradient))
        assert np.array_equal(moved.value, parameter.detach().numpy())
        states = {key: value for key, value in found.state().value.items() if key != "vector"}
        for key, value in plain.state[parameter].items():
            assert torch.equal(states.pop(f"optimizer.{key}"), value)
        assert not states


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_state_fits_whatever_the_blocks_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written in one piece, as ever, goes on in blocks, and the other way round."""
    drawn = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    gradients = [received(gradient) for gradient in drawn]
    straight = make(name, momentum=0.9, weight_decay=0.01)
    for gradient in gradients:
        straight.step(gradient)
    state = make(name, momentum=0.9, weight_decay=0.01).state()
    for gradient, block in zip(gradients, (5, 2, 3, 1, 4, 2), strict=True):
        monkeypatch.setattr(optimizer_module, "BLOCK", block)
        other = make(name, momentum=0.9, weight_decay=0.01)
        other.restore(state)
        other.step(gradient)
        state = other.state()
    assert np.array_equal(other.vector.value, straight.vector.value)


def test_a_step_has_the_rate_it_is_given() -> None:
    slow, fast = make("sgd"), make("sgd")
    slow.step(received(START), lr=0.05)
    fast.step(received(START), lr=0.1)
    assert np.allclose(2 * (slow.vector.value - START), fast.vector.value - START, atol=1e-7)
    slow.step(received(START))
    assert np.allclose(START - slow.vector.value, 0.15 * START, atol=1e-7)


class Largest(TorchDispatchMode):
    """Sees the tensors that torch makes, and keeps the size of the largest."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {item.untyped_storage().data_ptr() for item in args if isinstance(item, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
            self.size = max(self.size, made.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_step_makes_nothing_larger_than_a_block(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient = received(np.ones(1000, np.float32))
    for block, largest in ((1000, 1000), (100, 100)):
        monkeypatch.setattr(optimizer_module, "BLOCK", block)
        settings = OptimizerSection(name=name, lr=0.1, momentum=0.9, weight_decay=0.01)
        optimizer = VectorOptimizer(settings, public(np.zeros(1000, np.float32)))
        optimizer.step(gradient)  # makes the state
        with Largest() as seen:
            optimizer.step(gradient)
        assert seen.size == largest


def test_it_is_public_at_first_and_rests_on_what_it_was_given_afterwards() -> None:
    optimizer = make()
    assert optimizer.vector.trust_model == TrustModel.PUBLIC
    assert optimizer.step(public(START)).trust_model == TrustModel.PUBLIC
    assert optimizer.step(received(START)).trust_model == TrustModel.RECEIVED
    assert optimizer.step(public(START)).trust_model == TrustModel.RECEIVED
    assert optimizer.state().trust_model == TrustModel.RECEIVED
    optimizer.restore(restored(optimizer.state().value))
    assert optimizer.vector.trust_model == TrustModel.RESTORED
    both = TrustModel.RESTORED | TrustModel.RECEIVED
    assert optimizer.step(received(START)).trust_model == both


def test_a_raw_gradient_changes_nothing() -> None:
    optimizer = make("adamw")
    optimizer.step(received(START))
    before = {key: value.clone() for key, value in optimizer.state().value.items()}
    raw: Any = START
    with pytest.raises(RawValueError, match="gradient"):
        optimizer.step(raw)
    after = optimizer.state().value
    assert before.keys() == after.keys() == {"vector", *map("optimizer.{}".format, ADAMW)}
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_vector_that_was_given_out_never_changes() -> None:
    optimizer = make(momentum=0.9)
    first = optimizer.step(received(START))
    kept = first.value.copy()
    optimizer.step(received(START))
    assert np.array_equal(first.value, kept)
    assert np.array_equal(START, np.linspace(-1, 1, 5, dtype=np.float32))
