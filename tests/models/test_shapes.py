"""Shapes that are told beforehand are those that are trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError, ModelError
from fedpriv.models.base import load_base
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.lora import attach_lora
from fedpriv.models.stored import adapter_shapes

Make = Callable[..., Path]


@pytest.mark.parametrize("frozen_a", [False, True])
@pytest.mark.parametrize("targets", ["auto", "all-linear"])
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_they_are_those_of_the_adapter(
    model_folder: Make, kind: str, targets: Any, frozen_a: bool
) -> None:
    task: Any = "classification" if kind == "bert" else "causal-lm"
    labels = ("a", "b") if kind == "bert" else ()
    section = ModelSection(name=str(model_folder(kind)), task=task, labels=labels, max_length=32)
    lora = LoraSection(r=3, alpha=3, target_modules=targets, frozen_a=frozen_a)
    model = attach_lora(load_base(section), lora, task, seed=0)
    trained = Counter(
        tuple(value.shape)
        for name, value in model.named_parameters()
        if value.requires_grad and ".lora_" in name
    )
    assert adapter_shapes(section, lora) == trained


def test_what_is_not_there_is_said_as_when_it_is_loaded(model_folder: Make) -> None:
    section = ModelSection(name=str(model_folder("llama")))
    with pytest.raises(ConfigError, match="matches no layer"):
        adapter_shapes(section, LoraSection(target_modules=("nothing",)))
    with pytest.raises(ModelError):
        adapter_shapes(ModelSection(name="/nowhere"), LoraSection())
