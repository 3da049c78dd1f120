"""The workers of a pool: one base for all of them, and what is trained for each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data.encode import Example
from fedpriv.gradients.engine import gradients_of
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.private_training import pool as module
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.record_loss import record_losses
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv_simulation.shared_base import SharedBasePool

Make = Callable[..., Any]


def recipe_of(folder: Path, **compute: Any) -> ModelRecipe:
    return ModelRecipe(
        ModelSection(name=str(folder), max_length=32),
        LoraSection(r=2, alpha=4),
        0,
        ComputeSection(device="cpu", **compute),
    )


def test_workers_hold_one_base_in_few_bits(model_folder: Make) -> None:
    pytest.importorskip("bitsandbytes")
    recipe = recipe_of(model_folder("llama"))
    recipe = replace(recipe, model=recipe.model.model_copy(update={"quantize": "4bit"}))
    first, other, _ = three(SharedBasePool(3), recipe)
    codes = {name: b for name, b in first.model.named_buffers() if name.endswith(".codes")}
    there = dict(other.model.named_buffers())
    assert codes and all(there[name].data_ptr() == held.data_ptr() for name, held in codes.items())
    assert torch.equal(rows_of(first), rows_of(other))


def rows_of(worker: Worker) -> Any:
    ids = list(range(3, 19))
    batch = worker.batch([Example(ids, ids)], 16)
    return gradients_of(worker.gradients, partial(record_losses, batch=batch), 1)


def three(pool: SharedBasePool, recipe: ModelRecipe) -> list[Worker]:
    with ExitStack() as stack:
        return [stack.enter_context(pool.borrow(recipe)) for _ in range(3)]


@pytest.mark.parametrize(
    "compute",
    [{}, {"dtype": "mixed"}, {"gradient_checkpointing": True}, {"engine": "opacus"}],
    ids=["float32", "mixed", "checkpointing", "opacus"],
)
def test_workers_hold_one_base(model_folder: Make, compute: dict[str, Any]) -> None:
    if compute.get("engine") == "opacus":
        pytest.importorskip("opacus")
    first, *others = three(SharedBasePool(3), recipe_of(model_folder("llama"), **compute))
    before = rows_of(first)
    of_first = dict(first.model.named_parameters())
    for other in others:
        for name, parameter in other.model.named_parameters():
            shared = parameter.data_ptr() == of_first[name].data_ptr()
            assert shared != parameter.requires_grad, name
        assert other.base.tokenizer is not first.base.tokenizer  # which keeps settings of a call
        assert torch.equal(rows_of(other), before)


def test_what_one_worker_trains_no_other_has(model_folder: Make) -> None:
    pool, recipe = SharedBasePool(3), recipe_of(model_folder("llama"))
    first, second, _ = three(pool, recipe)
    first.vector.write(np.ones(first.vector.size, np.float32))
    assert np.array_equal(second.vector.read(), second.initial)
    assert not torch.equal(rows_of(first), rows_of(second))


def test_the_base_is_loaded_once_and_goes_with_its_workers(
    model_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, loaded = module.load_base, []

    def load(settings: ModelSection, **options: Any) -> Any:
        loaded.append(settings.name)
        return real(settings, **options)

    monkeypatch.setattr(module, "load_base", load)
    pool = SharedBasePool(3)
    one, other = recipe_of(model_folder("llama")), recipe_of(model_folder("qwen3"))
    three(pool, one)
    assert len(loaded) == 1
    three(pool, other)
    assert len(loaded) == 2
    assert list(pool._loaded) == [other]


def test_a_base_that_was_refused_is_not_kept(model_folder: Make) -> None:
    def refuse(*arguments: Any) -> None:
        raise ValueError("another base was proposed")

    pool, recipe = SharedBasePool(2), recipe_of(model_folder("llama"))
    with pytest.raises(ValueError, match="another base"), pool.borrow(recipe, refuse):
        pass
    assert not pool._loaded
