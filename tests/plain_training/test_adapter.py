"""An adapter as a folder gives back what was put into it, whatever is trained beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpriv.adapter_facts import read_facts
from fedpriv.errors import ConfigError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.plain_training.adapter import read_values, write_adapter
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv.protocol import Proposal

Make = Callable[..., Any]
LABELS = ("no", "yes")


def recipe_of(folder: Path, kind: str, dtype: Any = "float32", **lora: Any) -> ModelRecipe:
    classifies = kind == "bert"
    model = ModelSection(
        name=str(folder),
        task="classification" if classifies else "causal-lm",
        labels=LABELS if classifies else (),
        max_length=32,
    )
    targets = ("query", "value") if classifies else ("q_proj",)
    settings = LoraSection(r=2, target_modules=targets, **lora)
    return ModelRecipe(model, settings, 3, ComputeSection(device="cpu", dtype=dtype))


def proposal_of(worker: Worker) -> Proposal:
    recipe = worker.recipe
    return Proposal(
        job_id="job-1",
        method="dp-lora",
        steps=4,
        seed=recipe.seed,
        fields=("label", "text") if recipe.model.labels else ("text",),
        model=recipe.model,
        lora=recipe.lora,
        privacy=PrivacySection(epsilon=5.0, delta=1e-3, sample_rate=0.5, max_records_per_unit=1),
        base_digest=worker.base.digest,
        begin_digest=worker.base.begin_digest,
        vector_digest=worker.vector.digest,
    )


def drawn(worker: Worker) -> Any:
    return np.random.default_rng(0).normal(size=worker.vector.size).astype(np.float32)


@pytest.mark.parametrize(
    ("kind", "dtype", "lora"),
    [
        ("llama", "float32", {}),
        ("llama", "float32", {"frozen_a": True}),
        ("llama", "mixed", {}),
        ("bert", "float32", {}),
        ("bert", "bfloat16", {}),
    ],
)
def test_what_is_written_is_read_in_another_process(
    tmp_path: Path, model_folder: Make, kind: str, dtype: Any, lora: dict[str, Any]
) -> None:
    recipe = recipe_of(model_folder(kind), kind, dtype, **lora)
    first, other = make_worker(recipe), make_worker(recipe)
    write_adapter(tmp_path / "a", first, drawn(first), proposal_of(first), "", kind="federated")
    first.vector.write(drawn(first))
    found = read_values(tmp_path / "a", other, read_facts(tmp_path / "a"))
    assert np.array_equal(found, first.vector.read())


def test_one_with_another_frozen_part_is_refused(tmp_path: Path, model_folder: Make) -> None:
    """What is not trained is part of the model, too."""
    recipe = recipe_of(model_folder("llama"), "llama", frozen_a=True)
    ours = make_worker(recipe)
    theirs = make_worker(dataclasses.replace(recipe, seed=4))
    folder = tmp_path / "a"
    write_adapter(folder, theirs, drawn(theirs), proposal_of(ours), "", kind="federated")
    with pytest.raises(ConfigError, match="what it holds beside the trained values"):
        read_values(folder, ours, read_facts(folder))


def test_values_that_are_not_finite_are_refused(tmp_path: Path, model_folder: Make) -> None:
    from safetensors.numpy import load_file, save_file

    from fedpriv.base_model import WEIGHTS
    from fedpriv.plain_training.adapter import write_facts

    worker = make_worker(recipe_of(model_folder("llama"), "llama"))
    folder = tmp_path / "a"
    write_adapter(folder, worker, drawn(worker), proposal_of(worker), "", kind="federated")
    weights = load_file(folder / WEIGHTS)
    next(iter(weights.values()))[0, 0] = np.nan
    save_file(weights, folder / WEIGHTS)
    write_facts(folder, proposal_of(worker), kind="federated")
    with pytest.raises(ConfigError, match="finite"):
        read_values(folder, worker, read_facts(folder))


@pytest.mark.parametrize("content", [b"", b"no weights", b"\xff" * 64])
def test_weights_that_are_none_are_refused(
    tmp_path: Path, model_folder: Make, content: bytes
) -> None:
    from fedpriv.base_model import WEIGHTS
    from fedpriv.plain_training.adapter import write_facts

    worker = make_worker(recipe_of(model_folder("llama"), "llama"))
    (tmp_path / WEIGHTS).write_bytes(content)
    write_facts(tmp_path, proposal_of(worker), kind="federated")
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors: can't be used"):
        read_values(tmp_path, worker, read_facts(tmp_path))
