"""The slower engine: exact where it serves, refused where it is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from fedpriv.errors import NotPrivateError
from fedpriv.gradients.engine import gradients_of
from fedpriv.gradients.opacus import OpacusGradients
from fedpriv.private_training.record_loss import record_losses
from tests.gradients.gradients_checks import disturb, loop, per_record, random_batch


@pytest.mark.parametrize(
    ("kind", "task", "whole"),
    [
        ("llama", "causal-lm", ()),
        ("bert", "classification", ()),
        ("gpt2", "causal-lm", ("ln_f",)),
        ("llama", "causal-lm", ("embed_tokens",)),
    ],
)
def test_rows_equal_a_loop_over_single_records(
    make_worker: Callable[..., Any], kind: str, task: str, whole: tuple[str, ...]
) -> None:
    worker = make_worker(kind, task=task, modules_to_save=whole, engine="opacus")
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13, 2])
    rows = per_record(worker, batch)
    expected = loop(worker, batch)
    assert rows.shape == (4, worker.vector.size)
    assert (rows - expected).norm() / expected.norm() < 1e-10
    assert not any(module.training for module in worker.model.modules())
    assert all(p.grad is None for p in worker.model.parameters())


@pytest.mark.parametrize("whole", ["ln_f", "wte"])
def test_what_only_opacus_computes_is_refused_with_the_way_out(
    make_worker: Callable[..., Any], whole: str
) -> None:
    with pytest.raises(NotPrivateError, match=rf'{whole}.*compute\.engine = "opacus"'):
        make_worker("gpt2", modules_to_save=(whole,))


@pytest.mark.parametrize(("whole", "engine"), [((), "fedpriv"), (("ln_f",), "opacus")])
def test_auto_takes_opacus_for_what_it_alone_computes_and_says_so(
    make_worker: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    whole: tuple[str, ...],
    engine: str,
) -> None:
    caplog.set_level("INFO")
    worker = make_worker("gpt2", modules_to_save=whole, engine="auto")
    assert isinstance(worker.gradients, OpacusGradients) == (engine == "opacus")
    told = [r.getMessage() for r in caplog.records if "compute.engine" in r.getMessage()]
    assert len(told) == bool(whole)
    assert all("opacus" in line and "ln_f" in line and "LayerNorm" in line for line in told)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13])
    rows, expected = per_record(worker, batch), loop(worker, batch)
    assert (rows - expected).norm() / expected.norm() < 1e-10


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"dtype": "mixed"}, "dtype: 'mixed'"),
        ({"gradient_checkpointing": True}, "gradient_checkpointing"),
        ({"dtype": "float32", "quantize": "8bit"}, r"model\.quantize"),
    ],
)
def test_auto_refuses_what_opacus_can_not_compute_with_and_says_why(
    make_worker: Callable[..., Any], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotPrivateError, match=rf"ln_f.*LayerNorm.*can't compute with .*{why}"):
        make_worker("gpt2", modules_to_save=("ln_f",), engine="auto", **settings)


def test_blocks_are_handed_over_in_their_order(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("llama", engine="opacus")
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13])
    handed: list[tuple[int, int]] = []

    def take(start: int, part: torch.Tensor) -> None:
        handed.append((start, part.shape[1]))

    worker.gradients.stream(partial(record_losses, batch=batch), 3, take)
    assert handed == worker.gradients.blocks
    assert sum(width for _, width in worker.gradients.blocks) == worker.gradients.size


def test_a_batch_that_fails_leaves_nothing_behind(make_worker: Callable[..., Any]) -> None:
    worker = make_worker("llama", engine="opacus")
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13])
    before = per_record(worker, batch)

    def fails(model: Any) -> torch.Tensor:
        record_losses(model, batch)
        raise torch.OutOfMemoryError

    def fails_backward(model: Any) -> torch.Tensor:
        losses = record_losses(model, batch)
        losses.register_hook(lambda g: 1 / 0)
        middle = model.get_base_model().model.layers[0].mlp
        middle.register_full_backward_hook(lambda *_: 1 / 0)
        return losses

    for failing in (fails, fails_backward):
        with pytest.raises((torch.OutOfMemoryError, ZeroDivisionError)):
            worker.gradients.stream(failing, 3, lambda start, part: None)
        worker.model.get_base_model().model.layers[0].mlp._backward_hooks.clear()
        assert torch.equal(per_record(worker, batch), before)


@pytest.mark.parametrize("engine", ["fedpriv", "opacus"])
def test_no_gradient_is_left_where_an_optimizer_looks(
    make_worker: Callable[..., Any], engine: str
) -> None:
    """Not even of what is trained since, nor for hooks that wait for one."""
    worker = make_worker("llama", engine=engine)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13])
    before = per_record(worker, batch)
    seen: list[Any] = []
    for name, parameter in worker.model.named_parameters():
        if parameter.requires_grad or name.endswith("model.norm.weight"):
            parameter.requires_grad_(True).register_post_accumulate_grad_hook(seen.append)
    assert torch.allclose(per_record(worker, batch), before)
    assert not seen and all(p.grad is None for p in worker.model.parameters())


def test_a_batch_that_goes_backwards_outside_of_a_step_is_refused(
    make_worker: Callable[..., Any],
) -> None:
    """Its gradients, without noise, would be where an optimizer looks."""
    worker = make_worker("gpt2", modules_to_save=("ln_f",), engine="opacus")
    batch = random_batch(worker, [5, 3])
    with torch.enable_grad(), pytest.raises(NotPrivateError, match="outside of a private step"):
        record_losses(worker.model, batch).sum().backward()
    assert all(p.grad is None for p in worker.model.parameters())
    rows = per_record(worker, batch)
    worker.gradients.detach()
    with torch.enable_grad():
        record_losses(worker.model, batch).sum().backward()
    found = torch.cat([p.grad.reshape(-1) for p in worker.model.parameters() if p.requires_grad])
    assert (found - rows.sum(0)).norm() / found.norm() < 1e-10


def test_dora_is_refused_by_name(make_worker: Callable[..., Any]) -> None:
    from peft import LoraConfig, get_peft_model

    base = make_worker("llama").model.unload()
    model = get_peft_model(base, LoraConfig(target_modules=["q_proj"], use_dora=True))
    with pytest.raises(NotPrivateError, match="magnitude"):
        OpacusGradients(model)


def test_rows_that_do_not_add_up_are_refused() -> None:
    """A layer whose rule is right for its own weight, and whose weight another layer uses, too."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first: torch.Tensor = self.first(x) + x @ self.first.weight.t()
            return self.second(first)

    model = Shared()
    gradients = OpacusGradients(model)
    x = torch.randn(3, 4)
    with pytest.raises(NotPrivateError, match="don't add up"):
        gradients_of(gradients, lambda m: m(x).square().sum(1), 3)
