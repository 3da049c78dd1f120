"""How fast a machine is at a number format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedpriv.doctor import number_format as module
from fedpriv.doctor.number_format import time_in_halves
from fedpriv.errors import ModelError
from fedpriv.models.base import load_base
from fedpriv.models.config import ModelSection
from fedpriv.models.stored import linear_sizes
from fedpriv.private_training.config import ComputeSection

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
