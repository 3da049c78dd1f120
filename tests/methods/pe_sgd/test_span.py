"""Gradients by layers against the whole matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.batch import Batch
from fedpriv.gradients.engine import gradients_of, weighted_gradient
from fedpriv.methods.pe_sgd import span as module
from fedpriv.methods.pe_sgd.projection import Projection
from fedpriv.methods.pe_sgd.span import Span, _home
from fedpriv.private_training.record_loss import record_losses
from tests.gradients.gradients_checks import loop

N = 6


def batch_of(lengths: list[int], seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 250, (len(lengths), 20), generator=generator)
    mask = (torch.arange(20) < torch.tensor(lengths)[:, None]).long()
    labels = torch.where(mask == 1, ids, -100)
    labels[:, 0] = -100
    return Batch(ids * mask, mask, labels)


def part_of(batch: Batch, members: list[int]) -> Batch:
    return Batch(batch.input_ids[members], batch.attention_mask[members], batch.labels[members])


def losses(batch: Batch) -> Any:
    return partial(record_losses, batch=batch)


def batches(batch: Batch) -> Iterator[tuple[Any, list[int]]]:
    """In pieces, and in another order."""
    for members in ([4, 1], [0, 5, 3], [2]):
        yield losses(part_of(batch, members)), members


def disturb(worker: Any) -> None:
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(worker.vector.size, generator=generator) * 0.1
    worker.vector.write(worker.vector.read() + noise.numpy())


@pytest.fixture
def worker(make_worker: Callable[..., Any]) -> Any:
    made = make_worker("llama")
    disturb(made)
    return made


@pytest.fixture
def public() -> Batch:
    return batch_of([20, 5, 9, 13, 7, 18])


@pytest.fixture
def private() -> Batch:
    return batch_of([11, 20, 4], seed=3)


@pytest.fixture
def spanned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Span]:
    """A span of these losses, at the values that the worker has."""

    def make(worker: Any, parts: Iterable[Any], size: int = N, ridge: float = 1e-3) -> Span:
        monkeypatch.setattr(module, "batches", lambda worker, records: parts)
        return Span(worker, [None] * size, worker.vector.read(), ridge)

    return make


def rows(worker: Any, batch: Batch) -> torch.Tensor:
    return gradients_of(worker.gradients, losses(batch), len(batch))


@pytest.mark.parametrize("free", [0, 2**40])
@pytest.mark.parametrize(("there", "where"), [(8 * 6 * 1000 * 4, "cuda:0"), (2**17, "cpu")])
def test_where_it_is_kept_is_decided_by_sizes_whatever_is_free(
    monkeypatch: pytest.MonkeyPatch, free: int, there: int, where: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, there))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=there)
    )
    engine: Any = SimpleNamespace(device=torch.device("cuda:0"), size=1000, dtype=torch.float32)
    assert str(_home(engine, N)) == where


@pytest.mark.parametrize(("kind", "task"), [("llama", "causal-lm"), ("bert", "classification")])
def test_what_is_streamed_is_what_autograd_makes(
    kind: str, task: str, make_worker: Callable[..., Any]
) -> None:
    worker = make_worker(kind, task=task)
    disturb(worker)
    batch = batch_of([9, 14, 20])
    if task == "classification":
        batch = Batch(batch.input_ids, batch.attention_mask, torch.tensor([0, 2, 1]))
    engine = worker.gradients
    found = gradients_of(engine, losses(batch), 3)
    assert sum(columns for _, columns in engine.blocks) == engine.size
    assert torch.allclose(found, loop(worker, batch), atol=1e-14, rtol=1e-12)


def test_a_layer_that_is_used_twice_is_added_up() -> None:
    """Both parts of it come, and their sum is the gradient."""
    from torch import nn

    from fedpriv.gradients.per_sample import PerSampleGradients

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(torch.tanh(self.layer(x)))
            return result

    torch.manual_seed(0)
    model = Twice()
    engine, x = PerSampleGradients(model), torch.randn(4, 2, 3, dtype=torch.float64)

    def square(model: nn.Module) -> torch.Tensor:
        result: torch.Tensor = model(x).square().sum((1, 2))
        return result

    found = gradients_of(engine, square, 4)
    engine.detach()
    whole = []
    for i in range(4):
        alone = model(x[i : i + 1]).square().sum()
        made = torch.autograd.grad(alone, list(model.parameters()))
        whole.append(torch.cat([g.reshape(-1) for g in made]))
    assert torch.allclose(found, torch.stack(whole), atol=1e-14, rtol=0)


def test_it_holds_the_rows_whatever_the_batches_are(
    worker: Any, public: Batch, spanned: Callable[..., Span]
) -> None:
    g = rows(worker, public)
    found = spanned(worker, batches(public))
    assert (found.gram - g @ g.T).abs().max() < 1e-12
    z = torch.linspace(-1, 1, N, dtype=torch.float64)
    assert (found.combine(z) - z @ g).abs().max() < 1e-12


def test_products_are_those_of_the_whole_gradients(
    worker: Any, public: Batch, private: Batch, spanned: Callable[..., Span]
) -> None:
    g, h = rows(worker, public), rows(worker, private)
    found = spanned(worker, batches(public))
    assert (found.products(private) - h @ g.T).abs().max() < 1e-12


def test_a_weighted_backward_pass_is_the_combination(
    worker: Any, public: Batch, spanned: Callable[..., Span]
) -> None:
    """Gᵀz = ∇ Σ zᵢ ℓ(xᵢ), by torch itself on the untouched model.

    Powers of two, because the model's norms are float32: what is scaled before them rounds alike.
    """
    z = torch.tensor([0.5, -1.0, 2.0, 0.0, 4.0, -0.25], dtype=torch.float64)
    combined = spanned(worker, batches(public)).combine(z)
    weighted = weighted_gradient(worker.gradients, batches(public), z)
    worker.gradients.detach()
    trained = [p for p in worker.model.parameters() if p.requires_grad]
    loss = (z * record_losses(worker.model, public)).sum()
    plain = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, trained)])
    assert (combined - plain).abs().max() < 1e-12
    assert (weighted - plain).abs().max() < 1e-12


def test_the_whole_space_leaves_a_gradient_as_it_is(spanned: Callable[..., Span]) -> None:
    """With as many independent gradients as parameters."""
    from torch import nn

    from fedpriv.gradients.per_sample import PerSampleGradients

    torch.manual_seed(1)
    engine = PerSampleGradients(nn.Linear(3, 2, bias=False, dtype=torch.float64))
    x, y = (torch.randn(6, 1, n, dtype=torch.float64) for n in (3, 2))

    def distance(model: nn.Module) -> torch.Tensor:
        result: torch.Tensor = (model(x) - y).square().sum((1, 2))
        return result

    vector = SimpleNamespace(read=lambda: np.zeros(6, np.float32), write=lambda values: None)
    worker = SimpleNamespace(gradients=engine, vector=vector)
    found = spanned(worker, [(distance, list(range(6)))], ridge=1e-13)
    noisy = torch.randn(6, dtype=torch.float64)  # in multiples of the gradients
    z = found.projection.coefficients(found.gram @ noisy)
    assert (found.combine(z) - found.combine(noisy)).abs().max() < 1e-6


def test_a_record_without_a_gradient_spans_nothing(
    worker: Any, public: Batch, spanned: Callable[..., Span]
) -> None:
    found = spanned(worker, list(batches(public))[:2])  # the third has no example
    assert not found.gram[2].any()
    z = Projection(found.gram, 1e-3).coefficients(torch.ones(N))
    assert float(z[2]) == pytest.approx(1 / 1e-3 / float(found.gram.diagonal().mean()))
