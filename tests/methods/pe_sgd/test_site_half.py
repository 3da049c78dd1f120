"""Coefficients of units against a loop over records, their bound, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.encode import Example
from fedpriv.methods.pe_sgd.projection import normalised
from fedpriv.privacy.mechanism.clip import MARGIN
from fedpriv.private_training.unit_sum import sum_of_units
from tests.methods.pe_sgd_checks import (
    CLIP,
    RECORDS,
    RIDGE,
    N,
    adds_up,
    example,
    gradients,
    moved,
    prepared,
    units,
)

Make = Callable[..., Any]


def by_hand(
    worker: Any, members: list[tuple[Example, ...]], parameters: np.ndarray, bound: str
) -> np.ndarray:
    """Normal equations of every unit's mean gradient, bounded, added up."""
    g = gradients(worker, list(RECORDS), parameters)
    gram = g @ g.T
    inverse = np.linalg.inv(gram + RIDGE * np.trace(gram) / N * np.eye(N))
    total = np.zeros(N)
    for unit in members:
        if unit:
            z = g @ gradients(worker, list(unit), parameters).mean(0)
            z = inverse @ z
            largest = CLIP * (1 - MARGIN)
            scale = largest / np.linalg.norm(z)
            total += z * (scale if bound == "normalised" else min(1.0, scale))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["normalised", "clipped"])
@pytest.mark.parametrize("microbatch", [1, 2, 64])
def test_it_equals_the_loop_for_any_microbatch(
    make_worker: Make, microbatch: int, bound: Any
) -> None:
    worker = make_worker("qwen3", microbatch=microbatch)
    members, parameters = units([1, 3, 1, 0, 2]), moved(worker)
    method = prepared(worker, parameters, bound=bound)
    found = method.clipped_sum(worker, members, parameters, CLIP)
    assert found.sensitivity == CLIP
    expected = by_hand(worker, members, parameters, bound)
    assert np.abs(found.value.numpy() - expected).max() < 1e-6 * CLIP


def test_what_sites_send_adds_up_to_what_one_would(make_worker: Make) -> None:
    worker = make_worker("llama")
    members, parameters = units([1, 2, 1, 3, 1, 1]), moved(worker)
    method = prepared(worker, parameters)
    whole = method.clipped_sum(worker, members, parameters, CLIP).value
    parts = [members[:1], members[1:4], members[4:]]
    sites = [method.clipped_sum(worker, part, parameters, CLIP).value for part in parts]
    assert (torch.stack(sites).sum(0) - whole).abs().max() < 1e-12


@pytest.mark.parametrize("bound", [pytest.param("normalised", marks=pytest.mark.slow), "clipped"])
def test_one_unit_moves_the_sum_by_at_most_the_bound(make_worker: Make, bound: Any) -> None:
    """Random neighbours, and sets and values that an adversary might choose."""
    worker = make_worker("llama")
    parameters = moved(worker)
    for trial in range(6):
        members = units([2, 1, 3, 1], first=1000 * trial)
        scaled = (parameters * 3.0**trial).astype(np.float32)
        method = prepared(worker, scaled, bound=bound, ridge=10.0 ** (trial - 8))
        whole = method.clipped_sum(worker, members, scaled, CLIP).value
        for left_out in range(4):
            rest = members[:left_out] + members[left_out + 1 :]
            without = method.clipped_sum(worker, rest, scaled, CLIP).value
            change = float((whole - without).norm())
            assert 0 < change <= CLIP
            assert bound == "clipped" or change > 0.999 * CLIP


def test_an_empty_batch_gives_zero(make_worker: Make) -> None:
    worker = make_worker("llama")
    parameters = moved(worker)
    for members in ([], [()]):
        found = prepared(worker, parameters).clipped_sum(worker, members, parameters, CLIP)
        assert torch.equal(found.value, torch.zeros(N, dtype=torch.float64))


def test_a_set_that_spans_nothing_gives_zero(make_worker: Make) -> None:
    worker = make_worker("llama")
    method = prepared(worker, moved(worker), (None,) * N)
    found = method.clipped_sum(worker, units([1, 1]), moved(worker), CLIP)
    assert not found.value.any()


def test_a_unit_adds_the_same_integers_whatever_else_is_sampled(make_worker: Make) -> None:
    worker = make_worker("llama", dtype="float32", microbatch=4)
    members, parameters = units([1, 2, 1, 1]), moved(worker)
    method = prepared(worker, parameters)
    whole = method.clipped_sum(worker, members, parameters, CLIP, "strict").value
    alone = [method.clipped_sum(worker, [u], parameters, CLIP, "strict").value for u in members]
    assert torch.equal(torch.stack(alone).sum(0), whole)
    assert whole.dtype == torch.int64


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["normalised", pytest.param("clipped", marks=pytest.mark.slow)])
def test_a_unit_adds_the_same_whatever_else_is_sampled_at_a_small_ridge(
    make_worker: Make, bound: Any
) -> None:
    """In float32, whose last bits depend on the batch, and which a small ridge amplifies.

    With gradients in few directions; computed in batches, 1.7 times the bound was seen.
    """
    worker = make_worker("llama", dtype="float32", microbatch=16)
    parameters = np.zeros_like(worker.initial)
    parameters[:32] = 0.3  # one row of one lora_A
    members = units([1] * 8 + [3, 2, 1, 1])
    examples = tuple(example(20_000 + i, 30) for i in range(64))
    for ridge in (1e-3, 1e-8):
        method = prepared(worker, parameters, examples, ridge=ridge, bound=bound)
        adds_up(method, worker, members, parameters)


def test_each_mean_is_made_a_vector_in_memory_of_its_own(make_worker: Make) -> None:
    """Some processors round by how memory is aligned, and so by what stands before it."""
    worker = make_worker("llama")
    method = prepared(worker, moved(worker))
    coefficients, seen = method.span.projection.coefficients, []

    def noted(means: torch.Tensor) -> torch.Tensor:
        seen.append(
            (means.storage_offset(), means.untyped_storage().nbytes() // means.element_size())
        )
        return normalised(coefficients(means), CLIP)

    sum_of_units(
        worker, units([1]) * 3, CLIP, "default", size=N, values=method.span.products, vectors=noted
    )  # of one length
    assert seen == [(0, N)] * 3


def test_the_basis_stays_until_it_is_prepared_again(make_worker: Make) -> None:
    worker = make_worker("llama")
    first = moved(worker)
    second = (first * 1.5).astype(np.float32)
    method = prepared(worker, first)
    frozen = method.clipped_sum(worker, units([1, 1]), second, CLIP).value
    method.prepare(worker, second)
    fresh = method.clipped_sum(worker, units([1, 1]), second, CLIP).value
    assert (frozen - fresh).abs().max() > 1e-6


def test_sites_of_one_worker_have_a_span_together(make_worker: Make) -> None:
    """A simulation has it computed once, and another set, value or ridge is another span."""
    worker = make_worker("llama")
    values = moved(worker)
    mine = prepared(worker, values)
    others = prepared(worker, values.copy(), tuple(RECORDS)).span
    assert others is mine.span
    shifted = values.copy()
    shifted[-1] += 1e-3
    assert prepared(worker, shifted).span is not mine.span
    assert prepared(worker, values, (*RECORDS[1:], example(1, 9))).span is not mine.span
    assert prepared(worker, values, ridge=2 * RIDGE).span is not mine.span
    kept = mine.span
    values[-1] += 1e-3  # in place
    mine.prepare(worker, values)
    assert mine.span is not kept


def test_what_a_release_stands_for_is_the_ridge_projection(make_worker: Make) -> None:
    worker = make_worker("llama")
    parameters, record = moved(worker), example(77, 30)
    method = prepared(worker, parameters, bound="clipped")
    value = method.clipped_sum(worker, [(record,)], parameters, 1e6).value
    found = method.span.combine(value).numpy()
    g = gradients(worker, list(RECORDS), parameters)
    h, gram = gradients(worker, [record], parameters)[0], g @ g.T
    z = np.linalg.solve(gram + RIDGE * np.trace(gram) / N * np.eye(N), g @ h)
    assert np.abs(found - z @ g).max() < 1e-5 * np.abs(z @ g).max()
    assert np.abs(value.numpy() - z).max() < 1e-5 * np.abs(z).max()


def test_local_steps_move_in_the_span_of_the_beginning(make_worker: Make) -> None:
    """Three steps of SGD: each at the values so far, in gradients of the first values."""
    worker = make_worker("llama")
    members, first = units([1, 2, 1]), moved(worker)
    method = prepared(worker, first)
    span = method.span
    values, move = first, method.start(first)
    assert not move.any() and move.shape == (N,)
    for _ in range(3):
        total = method.clipped_sum(worker, members, method.at(first, move), CLIP).value
        expected = method.clipped_sum(worker, members, values, CLIP).value
        assert (total - expected).abs().max() < 1e-4 * CLIP  # values are float32
        move = (move - 0.5 * total.numpy()).astype(np.float32)
        step = span.combine(torch.from_numpy(-0.5 * total.numpy())).float().numpy()
        values = (values + step).astype(np.float32)
    assert np.abs(method.at(first, move) - values).max() < 1e-6
    assert np.abs(values - first).max() > 1e-3
