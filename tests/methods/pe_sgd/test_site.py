"""Coefficients of units against a loop over records, their bound, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.config.synthetic import ProjectionSection
from fedpriv.data.batch import padded_length
from fedpriv.data.encode import Example
from fedpriv.methods.dp_lora.site import DpLora
from fedpriv.methods.pe_sgd.site import PeSgd, Span, lifted
from fedpriv.privacy.mechanism.clip import MARGIN
from fedpriv.training.record_loss import record_losses

CLIP, RIDGE, N = 0.4, 0.05, 5
Make = Callable[..., Any]


def example(seed: int, length: int) -> Example:
    ids = np.random.default_rng(seed).integers(3, 250, size=length).tolist()
    return Example(ids, [-100, *ids[1:]])


def units(sizes: list[int], first: int = 0) -> list[tuple[Example, ...]]:
    """Units of the given numbers of records, of lengths from 3 to 60."""
    return [
        tuple(example(first + 100 * u + i, 3 + (17 * u + 29 * i) % 58) for i in range(size))
        for u, size in enumerate(sizes)
    ]


def span(**settings: Any) -> Span:
    section = ProjectionSection(size=N, **{"ridge": RIDGE, **settings})
    return Span(section, tuple(example(10_000 + i, 9 + 11 * i) for i in range(N)))


def prepared(worker: Any, parameters: np.ndarray, **settings: Any) -> PeSgd:
    method = PeSgd(span(**settings))
    method.prepare(worker, parameters)
    return method


def moved(worker: Any) -> np.ndarray:
    noise = np.random.default_rng(5).normal(size=worker.vector.size) / 10
    found: np.ndarray = worker.vector.read() + noise.astype(np.float32)
    return found


def gradients(worker: Any, records: list[Example], parameters: np.ndarray) -> np.ndarray:
    """One record at a time with plain autograd, (B, P)."""
    if worker._gradients is not None:
        worker._gradients.detach()
        worker._gradients = None
    worker.vector.write(parameters)
    trained = [p for p in worker.model.parameters() if p.requires_grad]
    rows = []
    for record in records:
        length = padded_length(len(record.input_ids), 64)
        loss = record_losses(worker.model, worker.batch([record], length)).sum()
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)]).numpy())
    return np.array(rows)


def by_hand(
    worker: Any, members: list[tuple[Example, ...]], parameters: np.ndarray, bound: str, noise: str
) -> np.ndarray:
    """Normal equations of every unit's mean gradient, bounded, added up."""
    g = gradients(worker, [one for one in span().examples if one is not None], parameters)
    gram = g @ g.T
    inverse = np.linalg.inv(gram + RIDGE * np.trace(gram) / N * np.eye(N))
    total = np.zeros(N)
    for unit in members:
        if unit:
            z = g @ gradients(worker, list(unit), parameters).mean(0)
            z = inverse @ z if noise == "coefficients" else z
            largest = CLIP * (1 - MARGIN)
            scale = largest / np.linalg.norm(z)
            total += z * (scale if bound == "normalised" else min(1.0, scale))
    return total


@pytest.mark.parametrize("noise", ["coefficients", "products"])
@pytest.mark.parametrize("bound", ["normalised", "clipped"])
@pytest.mark.parametrize("microbatch", [1, 2, 64])
def test_it_equals_the_loop_for_any_microbatch(
    make_worker: Make, microbatch: int, bound: Any, noise: Any
) -> None:
    worker = make_worker("qwen3", microbatch=microbatch)
    members, parameters = units([1, 3, 1, 0, 2]), moved(worker)
    method = prepared(worker, parameters, bound=bound, noise=noise)
    found = method.clipped_sum(worker, members, parameters, CLIP)
    assert found.sensitivity == CLIP
    expected = by_hand(worker, members, parameters, bound, noise)
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
    method = PeSgd(Span(span().settings, (None,) * N))
    assert method.prepare(worker, moved(worker)) == N
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


@pytest.mark.parametrize(
    "settings",
    [
        {"size": 64, "bound": "normalised"},
        pytest.param({"size": 64, "bound": "clipped"}, marks=pytest.mark.slow),
        pytest.param({"size": 64, "noise": "products"}, marks=pytest.mark.slow),
    ],
    ids=["normalised", "clipped", "products"],
)
def test_a_unit_adds_the_same_whatever_else_is_sampled_at_a_small_ridge(
    make_worker: Make, settings: dict[str, Any]
) -> None:
    """In float32, whose last bits depend on the batch, and which a small ridge amplifies.

    With gradients in few directions; computed in batches, 1.7 times the bound was seen.
    """
    worker = make_worker("llama", dtype="float32", microbatch=16)
    parameters = np.zeros_like(worker.initial)
    parameters[:32] = 0.3  # one row of one lora_A
    members = units([1] * 8 + [3, 2, 1, 1])
    examples = tuple(example(20_000 + i, 30) for i in range(settings["size"]))
    for ridge in (1e-3, 1e-8):
        method = PeSgd(Span(ProjectionSection(ridge=ridge, **settings), examples))
        adds_up(method, worker, members, parameters)


def test_the_rest_of_a_gradient_is_the_same_whatever_else_is_sampled(make_worker: Make) -> None:
    """Rows of 355 values begin anywhere in memory."""
    worker = make_worker(
        "bert", dtype="float32", task="classification", r=2, targets=("query",),
        modules_to_save=("classifier",),
    )  # fmt: skip
    members = [tuple(Example(one.input_ids, 1) for one in unit) for unit in units([1] * 7 + [3])]
    examples = tuple(Example(example(20_000 + i, 30).input_ids, i % 3) for i in range(50))
    section = ProjectionSection(size=50, ridge=1e-8, noise="residual", bound="clipped")
    adds_up(PeSgd(Span(section, examples)), worker, members, worker.initial)


def adds_up(
    method: PeSgd, worker: Any, members: list[tuple[Example, ...]], parameters: np.ndarray
) -> None:
    """Every unit adds what it adds alone, and so at most the bound."""
    method.prepare(worker, parameters)
    whole = method.clipped_sum(worker, members, parameters, CLIP).value
    alone = [method.clipped_sum(worker, [one], parameters, CLIP).value for one in members]
    assert whole.norm() > 0.1 * CLIP
    assert (torch.stack(alone).sum(0) - whole).norm() < 1e-9 * CLIP
    for left_out in range(len(members)):
        rest = members[:left_out] + members[left_out + 1 :]
        without = method.clipped_sum(worker, rest, parameters, CLIP).value
        assert (whole - without).norm() <= CLIP


def test_the_basis_stays_until_it_is_prepared_again(make_worker: Make) -> None:
    worker = make_worker("llama")
    first = moved(worker)
    second = (first * 1.5).astype(np.float32)
    method = prepared(worker, first)
    frozen = method.clipped_sum(worker, units([1, 1]), second, CLIP).value
    method.prepare(worker, second)
    fresh = method.clipped_sum(worker, units([1, 1]), second, CLIP).value
    assert (frozen - fresh).abs().max() > 1e-6


def test_noise_on_the_gradient_is_dp_lora(make_worker: Make) -> None:
    worker = make_worker("llama")
    members, parameters = units([1, 2, 1]), moved(worker)
    method = PeSgd(span(noise="gradient"))
    assert method.prepare(worker, parameters) == worker.vector.size
    found = method.clipped_sum(worker, members, parameters, CLIP)
    expected = DpLora().clipped_sum(worker, members, parameters, CLIP)
    assert torch.equal(found.value, expected.value)
    assert method.span.values(7) == 7


@pytest.mark.parametrize("noise", ["coefficients", "products", "gradient"])
def test_what_a_release_stands_for_is_the_ridge_projection(make_worker: Make, noise: Any) -> None:
    """Without noise and bound, all three are the same gradient."""
    worker = make_worker("llama")
    parameters = moved(worker)
    record = example(77, 30)
    method = PeSgd(span(noise=noise, bound="clipped"))
    method.prepare(worker, parameters)
    value = method.clipped_sum(worker, [(record,)], parameters, 1e6).value
    found, coefficients = lifted(method.span, worker, parameters, value.float().numpy())
    g = gradients(worker, [one for one in method.span.examples if one is not None], parameters)
    h, gram = gradients(worker, [record], parameters)[0], g @ g.T
    z = np.linalg.solve(gram + RIDGE * np.trace(gram) / N * np.eye(N), g @ h)
    assert np.abs(found - z @ g).max() < 1e-5 * np.abs(z @ g).max()
    assert np.abs(coefficients - z).max() < 1e-5 * np.abs(z).max()


def test_the_span_and_the_residual_are_the_whole_gradient(make_worker: Make) -> None:
    """Where nothing is clipped; as long as both together, and N + P values."""
    worker = make_worker("llama", microbatch=2)
    parameters, members = moved(worker), units([1, 2, 1])
    method = PeSgd(span(noise="residual", bound="clipped"))
    assert method.prepare(worker, parameters) == N + worker.vector.size
    value = method.clipped_sum(worker, members, parameters, 1e6).value
    found, _ = lifted(method.span, worker, parameters, value.float().numpy())
    expected = DpLora().clipped_sum(worker, members, parameters, 1e6).value.numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_each_part_of_a_gradient_has_its_share_of_the_bound(
    make_worker: Make, share: float
) -> None:
    worker = make_worker("llama")
    parameters, members = moved(worker), units([1, 2, 1])
    method = PeSgd(span(noise="residual", bound="clipped", residual_share=share, ridge=1e-6))
    method.prepare(worker, parameters)
    clip = 1e-4
    whole = method.clipped_sum(worker, members, parameters, clip).value
    for left_out in range(3):
        rest = members[:left_out] + members[left_out + 1 :]
        change = whole - method.clipped_sum(worker, rest, parameters, clip).value
        assert change.norm() <= clip
        assert float(change[:N].norm()) == pytest.approx(clip * (1 - share) ** 0.5, rel=1e-4)
        assert float(change[N:].norm()) == pytest.approx(clip * share**0.5, rel=1e-4)


def test_local_steps_move_in_the_span_of_the_beginning(make_worker: Make) -> None:
    """Three steps of SGD: each at the values so far, in gradients of the first values."""
    worker = make_worker("llama")
    members, first = units([1, 2, 1]), moved(worker)
    method = prepared(worker, first)
    basis = method._basis
    assert basis is not None
    values, move = first, method.start(first)
    assert not move.any() and move.shape == (N,)
    for _ in range(3):
        total = method.clipped_sum(worker, members, method.at(first, move), CLIP).value
        expected = method.clipped_sum(worker, members, values, CLIP).value
        assert (total - expected).abs().max() < 1e-4 * CLIP  # values are float32
        move = (move - 0.5 * total.numpy()).astype(np.float32)
        step = basis.combine(torch.from_numpy(-0.5 * total.numpy())).float().numpy()
        values = (values + step).astype(np.float32)
    assert np.abs(method.at(first, move) - values).max() < 1e-6
    assert np.abs(values - first).max() > 1e-3
