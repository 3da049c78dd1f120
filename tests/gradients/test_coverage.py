"""Every architecture that the documents name: rows against a loop over single records."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gradients.gradients_checks import disturb, loop, per_record, random_batch
from tests.small_models import ENCODERS, TARGETS

KINDS = sorted(set(TARGETS))


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["attention", "all-linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_a_loop_over_single_records(
    make_worker: Callable[..., Any], kind: str, targets: str
) -> None:
    task = "classification" if kind in ENCODERS else "causal-lm"
    wanted = TARGETS[kind] if targets == "attention" else "all-linear"
    worker = make_worker(kind, task=task, targets=wanted)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13, 2])
    rows = per_record(worker, batch)
    expected = loop(worker, batch)
    assert rows.shape == (4, worker.vector.size)
    assert expected.norm(dim=1).min() > 1e-3
    assert (rows - expected).norm() / expected.norm() < 1e-10


def test_the_documents_name_these_architectures() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/models.md").read_text(encoding="utf-8")
    listed = text.partition("tests/gradients/test_coverage.py`):")[2].partition(". What")[0]
    assert set(re.findall(r"[a-z0-9_]+", listed)) - {"and"} == set(KINDS)


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_checkpointed_layers_give_the_same_rows(make_worker: Callable[..., Any], kind: str) -> None:
    task = "classification" if kind == "bert" else "causal-lm"
    plain, twice = (
        make_worker(kind, task=task, gradient_checkpointing=again) for again in (False, True)
    )
    for worker in (plain, twice):
        disturb(worker)
    batch = random_batch(plain, [20, 7, 13, 2])
    calls = []
    layers = [m for m in twice.model.modules() if type(m).__name__.endswith("MLP")]
    layers = layers or [m for m in twice.model.modules() if type(m).__name__.endswith("SelfOutput")]
    layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    assert torch.equal(per_record(plain, batch), per_record(twice, batch))
    with torch.no_grad():
        made = len(calls)
        twice.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    assert len(calls) == made + 1
    assert made % 2 == 0  # every layer twice, in the probe and here


def test_a_model_without_repeated_layers_is_not_checkpointed() -> None:
    from fedpriv.errors import ConfigError
    from fedpriv.models.checkpointing import checkpoint_layers

    model = torch.nn.Linear(2, 2)
    model.config = type("Config", (), {"model_type": "line"})()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"gradient_checkpointing.*line"):
        checkpoint_layers(model)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_frozen_products_in_bfloat16_keep_the_rows_float32_and_close(
    make_worker: Callable[..., Any], kind: str
) -> None:
    """The layers that are trained, and all that is added up, stay as they were."""
    task = "classification" if kind == "bert" else "causal-lm"
    plain, mixed = (make_worker(kind, task=task, dtype=d) for d in ("float32", "mixed"))
    for worker in (plain, mixed):
        disturb(worker)
    batch = random_batch(plain, [20, 7, 13, 2])
    expected, found = per_record(plain, batch), per_record(mixed, batch)
    assert found.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(found, expected).min() > 0.999
    assert not torch.equal(found, expected)
    types = {n: p.dtype for n, p in mixed.model.named_parameters()}
    assert {t for n, t in types.items() if "lora_" in n or "norm" in n.lower()} == {torch.float32}
    assert torch.bfloat16 in types.values()


def test_a_whole_output_layer_is_trained_though_it_is_tied(
    make_worker: Callable[..., Any],
) -> None:
    worker = make_worker("gpt2", modules_to_save=("lm_head",))
    assert any("lm_head.modules_to_save" in name for name in worker.vector.names)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13, 2])
    rows = per_record(worker, batch)
    expected = loop(worker, batch)
    assert (rows - expected).norm() / expected.norm() < 1e-10


def test_two_adapters_at_once(make_worker: Callable[..., Any]) -> None:
    from peft import LoraConfig

    from fedpriv.gradients.per_sample import PerSampleGradients
    from fedpriv.models.vector import TrainableVector

    worker = make_worker("llama")
    config = LoraConfig(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "down_proj"])
    worker.model.add_adapter("second", config)
    worker.model.base_model.set_adapter(["default", "second"])
    worker.model.double()
    worker.gradients.detach()
    worker.gradients = PerSampleGradients(worker.model)
    worker.vector = TrainableVector(worker.model)
    assert any("second" in name for name in worker.vector.names)
    disturb(worker)
    batch = random_batch(worker, [20, 7, 13, 2])
    rows = per_record(worker, batch)
    expected = loop(worker, batch)
    assert rows.shape == expected.shape
    assert (rows - expected).norm() / expected.norm() < 1e-10
