"""The clipped sum of units: mean of a unit's records, clipped once, whatever the batches are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.batch import padded_length
from fedpriv.data.encode import Example
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.privacy.mechanism.clip import MARGIN
from fedpriv.privacy.mechanism.grid import Grid
from fedpriv.private_training.record_loss import record_losses
from tests.gradients.gradients_checks import untouched

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
    with untouched(worker):
        return _by_hand(worker, members, parameters)


def _by_hand(worker: Any, members: list[tuple[Example, ...]], parameters: np.ndarray) -> np.ndarray:
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


@pytest.mark.slow
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


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_unit_that_fails_contributes_zero_and_drops_no_other(
    numerics: Any,
    make_worker: Callable[..., Any],
    parameters_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = make_worker("llama", microbatch=4)
    members = [(example(seed, 20),) for seed in range(5)]
    parameters = parameters_of(worker)
    poison = members[2][0].input_ids[1]
    rest = members[:2] + members[3:]
    expected = DpLora().clipped_sum(worker, rest, parameters, CLIP, numerics).value
    plain = worker.batch

    def batch(examples: list[Example], length: int) -> Any:
        if any(e.input_ids[1] == poison for e in examples):
            raise RuntimeError("secret words of the record")
        return plain(examples, length)

    monkeypatch.setattr(worker, "batch", batch)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP, numerics).value
    assert (found - expected).abs().max() < 1e-12
    assert "RuntimeError" in caplog.text
    assert "secret words" not in caplog.text


class Unreadable(list[tuple[Example, ...]]):
    """Units of which one can't be read."""

    def __init__(self, members: list[tuple[Example, ...]], bad: int) -> None:
        super().__init__(members)
        self._bad = bad

    def __getitem__(self, place: Any) -> Any:
        if place == self._bad:
            raise OSError("secret words of the record")
        return super().__getitem__(place)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("kind", ["too long", "without a token", "unreadable"])
def test_a_unit_that_has_no_length_drops_no_other(
    make_worker: Callable[..., Any], parameters_of: Any, numerics: Any, kind: str
) -> None:
    """A server's tokenizer may make what no batch has a place for."""
    worker = make_worker("llama", microbatch=4)
    members, parameters = units([1, 1, 2, 1, 1]), parameters_of(worker)
    rest = members[:2] + members[3:]
    expected = DpLora().clipped_sum(worker, rest, parameters, CLIP, numerics).value
    if kind == "too long":
        members[2] = (example(7, 20), example(8, worker.recipe.model.max_length + 1))
    elif kind == "without a token":
        members[2] = (Example([], []),)
    else:
        members = Unreadable(members, 2)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP, numerics).value
    assert torch.equal(found, expected)
    assert expected.any()
    assert sum(worker.failures.values()) == 1


def watched(
    worker: Any, monkeypatch: pytest.MonkeyPatch, check: Callable[[list[Example]], None]
) -> list[int]:
    """How many records are put together from now on; `check` may refuse them."""
    plain, sizes = worker.batch, []

    def batch(examples: list[Example], length: int) -> Any:
        sizes.append(len(examples))
        check(examples)
        return plain(examples, length)

    monkeypatch.setattr(worker, "batch", batch)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["modernbert", pytest.param("bert", marks=pytest.mark.slow)])
def test_one_unit_moves_no_other_whatever_values_a_server_sends(
    make_worker: Callable[..., Any], kind: str
) -> None:
    """Far from any trained model the last bit of a row decides where it points."""
    worker = make_worker(kind, task="classification", microbatch=None)
    long = [Example(example(seed, 60).input_ids, 0) for seed in range(2)]
    short = [Example(example(seed, 5).input_ids, seed % 2) for seed in range(40)]
    # Without the first unit, what stands beside a short record in its batch is another.
    members = [(long[0], short[0])]
    for row in range(1, len(short) - 1, 2):
        members += [(long[1], short[row]), (long[1],), (long[0], short[row + 1]), (long[0],)]
    for scale in (1.0, 10.0, 100.0):
        moves = np.random.default_rng(0).normal(0, scale, worker.vector.size)
        parameters = (worker.initial + moves).astype(np.float32)

        def total(units: list[Any], values: Any = parameters) -> Any:
            return DpLora().clipped_sum(worker, units, values, CLIP).value

        moved = total(members) - total(members[1:])
        assert moved.norm() <= CLIP
        assert (moved - total(members[:1])).norm() <= 1e-12


def test_what_fails_beside_others_is_found_and_slows_nobody_down(
    make_worker: Callable[..., Any], parameters_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker("llama", microbatch=4)
    members = [(example(seed, 20),) for seed in range(12)]
    bad = members[5][0]
    parameters = parameters_of(worker)
    others = DpLora().clipped_sum(worker, members[:5] + members[6:], parameters, CLIP).value

    def spoilt(examples: list[Example]) -> None:
        if any(one is bad for one in examples):
            raise ValueError

    sizes = watched(worker, monkeypatch, spoilt)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP).value
    assert (found - others).abs().max() < 1e-12
    assert sizes == [4, 4, 1, 1, 1, 1, 4]
    assert worker.failures == {"ValueError": 1}


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


def test_a_unit_adds_the_same_whatever_else_is_sampled(
    make_worker: Callable[..., Any], parameters_of: Any
) -> None:
    """Also of a model with dropout: masks from a public seed would go by the place in a batch."""
    worker = make_worker("bert", task="classification", hidden_dropout_prob=0.5)
    members = labelled(units([1, 3, 1, 2]), "classification")
    parameters = parameters_of(worker)

    def total(chosen: list[tuple[Example, ...]]) -> torch.Tensor:
        return DpLora().clipped_sum(worker, chosen, parameters, CLIP).value

    alone = torch.stack([total([unit]) for unit in members])
    assert alone.norm(dim=1).min() > 1e-3
    for chosen in ([0, 1, 2, 3], [3, 1, 0], [2, 1]):
        assert (total([members[i] for i in chosen]) - alone[chosen].sum(0)).abs().max() < 1e-12


KINDS = [("llama", "causal-lm"), ("bert", "classification")]


def labelled(members: list[tuple[Example, ...]], task: str) -> list[tuple[Example, ...]]:
    if task == "causal-lm":
        return members
    return [tuple(Example(e.input_ids, len(e.input_ids) % 3) for e in unit) for unit in members]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "task"), KINDS)
def test_in_strict_numerics_a_unit_adds_the_same_integers_whatever_else_is_sampled(
    make_worker: Callable[..., Any], parameters_of: Any, kind: str, task: str
) -> None:
    worker = make_worker(kind, task=task, dtype="float32")
    members, parameters = labelled(units([1, 3, 1, 0, 2, 1, 4]), task), parameters_of(worker)

    def total(chosen: list[int]) -> torch.Tensor:
        found = DpLora().clipped_sum(
            worker, [members[i] for i in chosen], parameters, CLIP, "strict"
        )
        assert found.value.dtype == torch.int64
        assert (found.sensitivity, found.grid) == (CLIP, Grid(CLIP, worker.vector.size))
        return found.value

    alone = torch.stack([total([i]) for i in range(len(members))])
    assert alone.abs().sum(1).gt(0).tolist() == [bool(unit) for unit in members]
    order = np.random.default_rng(2)
    for size in (7, 7, 6, 5, 3, 2):
        chosen = order.permutation(len(members))[:size].tolist()
        assert torch.equal(total(chosen), alone[chosen].sum(0))


@pytest.mark.slow
def test_in_default_numerics_the_same_property_does_not_hold(
    make_worker: Callable[..., Any], parameters_of: Any
) -> None:
    """The mutation: sums in float64 of rows computed in batches, here a third of a step apart."""
    worker = make_worker("bert", task="classification", dtype="float32")
    members = labelled(units([1, 3, 1, 0, 2, 1, 4]), "classification")
    parameters = parameters_of(worker)
    alone = [DpLora().clipped_sum(worker, [unit], parameters, CLIP).value for unit in members]
    whole = DpLora().clipped_sum(worker, members, parameters, CLIP).value
    assert not torch.equal(whole, torch.stack(alone).sum(0))


def test_strict_numerics_compute_every_record_alone(
    make_worker: Callable[..., Any], parameters_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker("llama")
    members, parameters = units([1, 3, 1, 0, 2]), parameters_of(worker)
    plain, shapes = worker.batch, []

    def batch(examples: list[Example], length: int) -> Any:
        [record] = examples
        shapes.append(length == padded_length(len(record.input_ids), 64))
        return plain(examples, length)

    monkeypatch.setattr(worker, "batch", batch)
    found = DpLora().clipped_sum(worker, members, parameters, CLIP, "strict")
    monkeypatch.undo()
    assert shapes == [True] * 7
    exact = by_hand(worker, members, parameters)
    assert found.grid is not None
    moved = np.abs(found.value.numpy() * found.grid.step - exact).max()
    assert 0 < moved <= 4 * found.grid.step / 2  # four units that hold records


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_unit_that_would_break_the_bound_contributes_zero(
    make_worker: Callable[..., Any],
    parameters_of: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    numerics: Any,
) -> None:
    worker = make_worker("llama")
    monkeypatch.setattr("fedpriv.privacy.mechanism.clip.MARGIN", -1e-3)
    members, parameters = units([1, 2, 1]), parameters_of(worker)
    found = DpLora().clipped_sum(worker, members, parameters, 1e-3, numerics)
    assert not found.value.any()
    assert worker.failures == {"AccountingError": 3}
    assert caplog.text.count("AccountingError") == 1
