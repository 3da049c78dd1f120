"""How fast a machine is at a number format, and what `auto` comes to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.errors import ModelError, NotPrivateError
from fedpriv.models.base import load_base
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.stored import linear_sizes
from fedpriv.private_training import number_format as module
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.number_format import settled_dtype, time_in_halves, warn_if_slower
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe

Make = Callable[..., Any]
UNIT = 1e-4  # seconds of a float32 product, as the tests have it


class Products:
    """Products that take as long as a test says, in processor time.

    Attributes:
        halves: of one in bfloat16, in units of one in float32.
        made: how many there were of each shape of x.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, halves: float) -> None:
        self.halves, self.made, self.now = halves, list[tuple[int, int]](), 0.0
        monkeypatch.setattr(module, "linear", self._linear)
        monkeypatch.setattr(module.time, "thread_time", lambda: self.now)

    def _linear(self, x: Tensor, weight: Tensor) -> None:
        assert x.shape[-1] == weight.shape[1]
        self.made.append((x.shape[0], x.shape[1]))
        self.now += UNIT * (self.halves if weight.dtype == torch.bfloat16 else 1)


@pytest.fixture
def model(model_folder: Make) -> ModelSection:
    return ModelSection(name=str(model_folder("llama")), max_length=32)


@pytest.fixture
def recipe(model: ModelSection) -> ModelRecipe:
    return ModelRecipe(model, LoraSection(r=2, alpha=4), 0, ComputeSection(device="cpu"))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_the_sizes_are_those_of_the_model_that_is_loaded(kind: str, model_folder: Make) -> None:
    from transformers.pytorch_utils import Conv1D

    labels = {"task": "classification", "labels": ("no", "yes")} if kind == "bert" else {}
    settings = ModelSection(name=str(model_folder(kind)), max_length=32, **labels)
    expected = []
    for name, layer in load_base(settings).model.named_modules():
        if isinstance(layer, torch.nn.Linear) and "classifier" not in name:
            expected.append((layer.in_features, layer.out_features))
        elif isinstance(layer, Conv1D):
            expected.append((layer.weight.shape[0], layer.weight.shape[1]))
    found = linear_sizes(settings)
    assert sorted(found.elements()) == sorted(expected)


def test_a_model_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.name"):
        linear_sizes(ModelSection(name=str(tmp_path)))


@pytest.mark.parametrize("dtype", ["mixed", "bfloat16"])
def test_all_sizes_are_timed_where_bfloat16_is_fast(
    model: ModelSection, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = Products(monkeypatch, 0.25)
    ratio = time_in_halves(model, ComputeSection(device="cpu", dtype=dtype, microbatch=2))
    assert ratio == pytest.approx(0.25)
    sizes = {inputs for inputs, _ in linear_sizes(model)}
    assert {width for rows, width in products.made if rows == 2 * 32} >= sizes


def test_one_small_product_is_enough_where_bfloat16_is_slow(
    model: ModelSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = Products(monkeypatch, 8)
    ratio = time_in_halves(model, ComputeSection(device="cpu", dtype="mixed"))
    assert ratio == pytest.approx(8)
    assert {rows for rows, _ in products.made} == {module.FEW}


def test_no_further_size_is_begun_when_time_is_up(
    model: ModelSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUDGET", 0.0)
    products = Products(monkeypatch, 0.5)
    time_in_halves(model, ComputeSection(device="cpu", dtype="mixed"))
    (inputs, outputs), *_ = sorted(linear_sizes(model))
    assert {width for _, width in products.made} == {inputs, outputs}


def test_this_machine_has_a_figure(model: ModelSection) -> None:
    before = torch.get_num_threads()
    assert 0 < time_in_halves(model, ComputeSection(device="cpu", dtype="mixed")) < float("inf")
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("dtype", "halves", "told"), [
    ("mixed", 8, True), ("bfloat16", 8, True), ("mixed", 0.5, False), ("float32", 8, False),
])  # fmt: skip
def test_who_asks_for_what_is_slower_is_told_by_how_much(
    model: ModelSection,
    dtype: Any,
    halves: float,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "time_in_halves", lambda *_: halves)
    warn_if_slower.cache_clear()
    for _ in range(2):
        warn_if_slower(model, ComputeSection(device="cpu", dtype=dtype))
    assert caplog.text.count("8 times as long") == told
    warn_if_slower.cache_clear()


def test_a_missing_model_is_left_to_whoever_loads_it(tmp_path: Path) -> None:
    compute = ComputeSection(device="cpu", dtype="mixed")
    warn_if_slower(ModelSection(name=str(tmp_path)), compute)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let a product in bfloat16 take half the time, and a step as much as a test says."""

    def make(step: float) -> None:
        seconds: Iterator[float] = iter([step, 1.0])  # mixed is tried first
        monkeypatch.setattr(module, "time_in_halves", lambda *_: 0.5)
        monkeypatch.setattr(module, "_seconds", lambda *_: next(seconds))

    return make


@pytest.mark.parametrize(("step", "expected"), [(0.5, "mixed"), (0.96, "float32")])
def test_auto_is_mixed_where_a_step_is_faster(
    recipe: ModelRecipe,
    fast: Callable[[float], None],
    step: float,
    expected: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fast(step)
    caplog.set_level(logging.INFO)
    assert settled_dtype(recipe, WorkerPool(1), exact=False) == expected
    assert f"a step {step:.2g} times" in caplog.text
    assert f"computed in {expected!r}" in caplog.text


def test_auto_is_float32_where_a_loss_differs(
    recipe: ModelRecipe, fast: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses are real ones: products in bfloat16 move some, and all by less than NEAR."""
    fast(0.5)
    monkeypatch.setattr(module, "NEAR", 0.0)
    assert settled_dtype(recipe, WorkerPool(1), exact=False) == "float32"


def test_auto_is_float32_where_records_can_not_be_told_apart(
    recipe: ModelRecipe, fast: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast(0.5)
    monkeypatch.setattr(
        "fedpriv.private_training.probe.TOLERANCE", {"mixed": -1.0, "float32": 1e-4}
    )
    monkeypatch.setattr("fedpriv.private_training.probe.FACTOR", -1.0)
    assert settled_dtype(recipe, WorkerPool(1), exact=False) == "float32"
    with pytest.raises(NotPrivateError):
        monkeypatch.setattr("fedpriv.private_training.probe.TOLERANCE", {"float32": -1.0})
        WorkerPool(1).borrow(recipe).__enter__()


@pytest.mark.parametrize(
    ("exact", "engine", "slowness"),
    [(True, "fedpriv", 0.5), (False, "opacus", 0.5), (False, "fedpriv", 8.0)],
)
def test_what_is_float32_anyway_loads_no_model(
    recipe: ModelRecipe, exact: bool, engine: Any, slowness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoPool(WorkerPool):
        def borrow(self, *_: Any) -> Any:
            raise AssertionError

    monkeypatch.setattr(module, "time_in_halves", lambda *_: slowness)
    compute = ComputeSection(device="cpu", engine=engine)
    recipe = ModelRecipe(recipe.model, recipe.lora, 0, compute)
    assert settled_dtype(recipe, NoPool(), exact=exact) == "float32"


def test_a_recipe_that_nobody_settled_is_float32(recipe: ModelRecipe) -> None:
    auto = ComputeSection(device="cpu", dtype="auto", microbatch=2)
    found = ModelRecipe(recipe.model, recipe.lora, 0, auto)
    assert found.compute == ComputeSection(device="cpu", dtype="float32", microbatch=2)
