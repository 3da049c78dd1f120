from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config.job import OptimizerSection
from fedpriv.errors import RawValueError
from fedpriv.privacy.privatised import TrustModel, public, received, restored
from fedpriv.training.optimizer import VectorOptimizer

START = np.linspace(-1, 1, 5, dtype=np.float32)


def make(name: Any = "sgd", **settings: Any) -> VectorOptimizer:
    return VectorOptimizer(OptimizerSection(name=name, lr=0.1, **settings), public(START))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_it_moves_as_torchs_own_does(name: str) -> None:
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
    before = optimizer.state()
    raw: Any = START
    with pytest.raises(RawValueError, match="gradient"):
        optimizer.step(raw)
    after = optimizer.state()
    assert before.value.keys() == after.value.keys()
    assert all(torch.equal(before.value[key], after.value[key]) for key in before.value)


def test_a_vector_that_was_given_out_never_changes() -> None:
    optimizer = make(momentum=0.9)
    first = optimizer.step(received(START))
    kept = first.value.copy()
    optimizer.step(received(START))
    assert np.array_equal(first.value, kept)
    assert np.array_equal(START, np.linspace(-1, 1, 5, dtype=np.float32))
