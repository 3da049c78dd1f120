"""The clipped sum of units: mean of a unit's records, clipped once, whatever the batches are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.batch import padded_length
from fedpriv.data.encode import Example
from fedpriv.gradients.clip import MARGIN
from fedpriv.training.dp_lora import DpLora
from fedpriv.training.loss import record_losses

CLIP = 0.4


@pytest.fixture
def parameters_of() -> Callable[[Any], np.ndarray]:
    def make(worker: Any) -> np.ndarray:
        noise = np.random.default_rng(5).normal(size=worker.vector.size) / 10
        return worker.vector.read() + noise.astype(np.float32)

    return make


def example(seed: int, length: int) -> Example:
    ids = np.random.default_rng(seed).integers(3, 250, size=length).tolist()
    return Example(ids, [-100, *ids[1:]])


def units(sizes: list[int]) -> list[tuple[Example, ...]]:
    """Units of the given numbers of records, of lengths from 3 to 60."""
    return [
        tuple(example(100 * u + i, 3 + (17 * u + 29 * i) % 58) for i in range(size))
        for u, size in enumerate(sizes)
    ]


def by_hand(worker: Any, members: list[tuple[Example, ...]], parameters: np.ndarray) -> np.ndarray:
    """One record at a time with plain autograd, averaged by unit, clipped, added up."""
    if worker._gradients is not None:
        worker._gradients.detach()
        worker._gradients = None
    worker.vector.write(parameters)
    trained = [p for p in worker.model.parameters() if p.requires_grad]
    total = np.zeros(worker.vector.size)
    for unit in members:
        rows = []
        for record in unit:
            length = padded_length(len(record.input_ids), 64)
            loss = record_losses(worker.model, worker.batch([record], length)).sum()
            grads = torch.autograd.grad(loss, trained)
            rows.append(torch.cat([g.reshape(-1) for g in grads]).numpy())
        if rows:
            mean = np.mean(rows, axis=0)
            total += mean * min(1.0, CLIP * (1 - MARGIN) / np.linalg.norm(mean))
    return total


@pytest.mark.parametrize("microbatch", [1, 2, 5, 64])
def test_it_equals_the_loop_for_any_microbatch(
    make_worker: Callable[..., Any], parameters_of: Any, microbatch: int
) -> None:
    worker = make_worker("qwen3", microbatch=microbatch)
    members, parameters = units([1, 3, 1, 0, 2, 1, 4]), parameters_of(worker)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP)
    assert found.sensitivity == CLIP
    assert np.abs(found.value.numpy() - by_hand(worker, members, parameters)).max() < 1e-12


def test_one_unit_moves_the_sum_by_at_most_the_bound(
    make_worker: Callable[..., Any], parameters_of: Any
) -> None:
    worker = make_worker("llama")
    members, parameters = units([2, 1, 3, 1]), parameters_of(worker)
    whole = DpLora().clipped_sum(worker, members, parameters, 1e-3).value
    for left_out in range(4):
        rest = members[:left_out] + members[left_out + 1 :]
        without = DpLora().clipped_sum(worker, rest, parameters, 1e-3).value
        assert 0 < (whole - without).norm() <= 1e-3


def test_an_empty_batch_gives_zero(make_worker: Callable[..., Any], parameters_of: Any) -> None:
    worker = make_worker("llama")
    for members in ([], [()]):
        found = DpLora().clipped_sum(worker, members, parameters_of(worker), CLIP)
        assert torch.equal(found.value, torch.zeros(worker.vector.size, dtype=torch.float64))


def test_a_unit_that_fails_contributes_zero_and_drops_no_other(
    make_worker: Callable[..., Any],
    parameters_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = make_worker("llama", microbatch=4)
    members, parameters = units([1, 1, 1, 1, 1]), parameters_of(worker)
    poison = members[2][0].input_ids[1]
    expected = DpLora().clipped_sum(worker, members[:2] + members[3:], parameters, CLIP).value
    plain = worker.batch

    def batch(examples: list[Example], length: int) -> Any:
        if any(e.input_ids[1] == poison for e in examples):
            raise RuntimeError("secret words of the record")
        return plain(examples, length)

    monkeypatch.setattr(worker, "batch", batch)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP).value
    assert (found - expected).abs().max() < 1e-12
    assert "RuntimeError" in caplog.text
    assert "secret words" not in caplog.text


def test_out_of_memory_retries_the_same_units_in_smaller_batches(
    make_worker: Callable[..., Any], parameters_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker("llama", microbatch=8)
    members, parameters = units([1] * 8), parameters_of(worker)
    expected = DpLora().clipped_sum(worker, members, parameters, CLIP).value
    plain, sizes = worker.batch, []

    def batch(examples: list[Example], length: int) -> Any:
        sizes.append(len(examples))
        if len(examples) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(examples, length)

    monkeypatch.setattr(worker, "batch", batch)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP).value
    assert (found - expected).abs().max() < 1e-12
    assert max(sizes) > 2


def test_dropout_is_off(make_worker: Callable[..., Any], parameters_of: Any) -> None:
    """The mutation of law 4: a model in training mode would give another sum each time."""
    worker = make_worker("bert", task="classification", hidden_dropout_prob=0.5)
    members = [(Example([5, 6, 7], 1),), (Example([8, 9], 2),)]
    parameters = parameters_of(worker)
    sums = [DpLora().clipped_sum(worker, members, parameters, CLIP).value for _ in "ab"]
    assert torch.equal(*sums)
    worker.model.train()
    sums = [DpLora().clipped_sum(worker, members, parameters, CLIP).value for _ in "ab"]
    assert not torch.equal(*sums)
