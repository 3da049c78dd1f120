"""A model that begins at an adapter computes what peft computes with it, in both forms."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from fedpriv.adapter_facts import read_facts
from fedpriv.base_model import CONFIG, FACTS, WEIGHTS
from fedpriv.errors import ConfigError, ModelError
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.personal.single import widened, wider
from fedpriv.plain_training.adapter import write_adapter
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.pool import make_worker
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv.stored_adapter import find_adapter
from tests.arithmetic import Rounded
from tests.peft_adapters import write_peft_adapter
from tests.plain_training.test_adapter import proposal_of

Make = Callable[..., Any]
LABELS = ("no", "yes")
KINDS = [("llama", "causal-lm"), ("gpt2", "causal-lm"), ("bert", "classification")]
LAYERS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn", "c_fc"], "bert": ["query", "dense"]}


def recipe_of(base: Path, begin: Path, how: Any, task: Any, **changes: Any) -> ModelRecipe:
    """As a federation file leads to it."""
    labels = LABELS if task == "classification" else ()
    model = ModelSection(
        name=str(base),
        task=task,
        labels=labels,
        max_length=32,
        begin=str(begin),
        begin_as=how,
        quantize=changes.pop("quantize", None),
    )
    lora = find_adapter(str(begin)).lora if how == "continued" else LoraSection(r=2)
    lora = lora.model_copy(update=changes.pop("lora", {}))
    return ModelRecipe(model, lora, 3, ComputeSection(device="cpu", **changes))


def logits(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    return found.float()


def write(worker: Worker, folder: Path, kind: Any = "federated", **changes: Any) -> Path:
    proposal = proposal_of(worker).model_copy(update=changes)
    write_adapter(folder, worker, worker.initial, proposal, "", kind=kind)
    return folder


@pytest.mark.parametrize("how", ["continued", "merged"])
@pytest.mark.parametrize(("kind", "task"), KINDS)
def test_it_begins_at_exactly_that_adapter(
    tmp_path: Path, model_folder: Make, kind: str, task: str, how: str
) -> None:
    base, begin = model_folder(kind), tmp_path / "adapter"
    theirs = write_peft_adapter(begin, base, task, target_modules=LAYERS[kind])
    worker = make_worker(recipe_of(base, begin, how, task))
    ours = Rounded(lambda: logits(worker.model))
    assert ours.off_by(logits(theirs)) <= 1
    with theirs.disable_adapter():
        assert ours.off_by(logits(theirs)) > 1
    assert worker.base.begin_digest == find_adapter(str(begin)).digest
    if how == "continued":
        stored = load_file(begin / WEIGHTS)
        assert worker.vector.size == sum(one.numel() for one in stored.values())
    else:
        assert {tuple(shape) for shape in worker.vector.shapes} & {(2, 32), (32, 2)} != set()


def test_what_is_frozen_is_continued_too(tmp_path: Path, model_folder: Make) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    theirs = write_peft_adapter(begin, base)
    frozen = {"lora": {"frozen_a": True}}
    worker = make_worker(recipe_of(base, begin, "continued", "causal-lm", **frozen))
    assert Rounded(lambda: logits(worker.model)).off_by(logits(theirs)) <= 1
    weights = load_file(begin / WEIGHTS)
    name = next(name for name in weights if ".lora_A." in name)
    weights[name] = weights[name] + 0.01
    save_file(weights, begin / WEIGHTS)
    other = make_worker(recipe_of(base, begin, "continued", "causal-lm", **frozen))
    assert other.vector.digest != worker.vector.digest  # both sides know what is frozen
    assert np.array_equal(other.initial, worker.initial)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed"])
@pytest.mark.parametrize("how", ["continued", "merged"])
def test_in_other_number_formats(tmp_path: Path, model_folder: Make, how: str, dtype: str) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    theirs = write_peft_adapter(begin, base)
    exact = make_worker(recipe_of(base, begin, how, "causal-lm"))
    worker = make_worker(recipe_of(base, begin, how, "causal-lm", dtype=dtype))
    assert worker.vector.digest == exact.vector.digest
    if how == "continued":  # a new one is drawn in the base's own format
        assert np.array_equal(worker.initial, exact.initial)
    found, expected = logits(worker.model), logits(theirs)
    with theirs.disable_adapter():
        moved = (logits(theirs) - expected).norm()
    assert (found - expected).norm() < 0.05 * moved


@pytest.mark.slow
def test_beside_a_quantised_base_it_is_continued_and_never_merged(
    tmp_path: Path, model_folder: Make
) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    write_peft_adapter(begin, base)
    worker = make_worker(recipe_of(base, begin, "continued", "causal-lm", quantize="8bit"))
    plain = make_worker(recipe_of(base, begin, "continued", "causal-lm"))
    assert np.array_equal(worker.initial, plain.initial)
    with pytest.raises(ValidationError, match="needs begin, and weights in full"):
        recipe_of(base, begin, "merged", "causal-lm", quantize="8bit")
    with pytest.raises(ValidationError, match="'merged' needs begin"):
        ModelSection(begin_as="merged")


def test_an_adapter_of_another_shape_is_refused_by_what_differs(
    tmp_path: Path, model_folder: Make
) -> None:
    begin = tmp_path / "adapter"
    write_peft_adapter(begin, model_folder("llama"))
    larger = model_folder("llama", hidden_size=64)
    for how in ("continued", "merged"):
        with pytest.raises(ModelError, match=r"^model\.begin: .*not those of the job's model"):
            make_worker(recipe_of(larger, begin, how, "causal-lm"))
    with pytest.raises(ConfigError, match="matches no layer"):
        make_worker(recipe_of(model_folder("gpt2"), begin, "continued", "causal-lm"))
    more = {"lora": {"target_modules": ("q_proj", "v_proj", "o_proj")}}
    with pytest.raises(ModelError, match=r"o_proj\.lora_A\.weight of shape"):
        make_worker(recipe_of(model_folder("llama"), begin, "continued", "causal-lm", **more))


@pytest.mark.parametrize("how", ["continued", "merged"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(
    tmp_path: Path, model_folder: Make, how: str, value: float
) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    write_peft_adapter(begin, base)
    weights = load_file(begin / WEIGHTS)
    next(iter(weights.values()))[0, 0] = value
    save_file(weights, begin / WEIGHTS)
    with pytest.raises(ModelError, match="expected finite values"):
        make_worker(recipe_of(base, begin, how, "causal-lm"))


def test_weights_that_were_cut_short_are_refused(tmp_path: Path, model_folder: Make) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    write_peft_adapter(begin, base)
    (begin / WEIGHTS).write_bytes((begin / WEIGHTS).read_bytes()[:-8])
    with pytest.raises(ModelError, match=r"adapter_model\.safetensors: can't be read"):
        make_worker(recipe_of(base, begin, "continued", "causal-lm"))


@pytest.mark.parametrize(
    "trained",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ],
)
def test_nothing_is_merged_into_weights_that_another_layer_has(
    tmp_path: Path, model_folder: Make, trained: dict[str, list[str]]
) -> None:
    base, begin = model_folder("llama", tie_word_embeddings=True), tmp_path / "adapter"
    write_peft_adapter(begin, base, **trained)
    with pytest.raises(ModelError, match=r"can't be merged: .*lm_head shares its weights"):
        make_worker(recipe_of(base, begin, "merged", "causal-lm"))


def test_what_fedpriv_wrote_of_an_adapter_has_to_fit(tmp_path: Path, model_folder: Make) -> None:
    """A federation goes on from another one's adapter, on the base and with the labels of that."""
    base, peft = model_folder("bert"), tmp_path / "peft"
    write_peft_adapter(peft, base, "classification", target_modules=["query"])
    first = make_worker(recipe_of(base, peft, "continued", "classification"))
    begin = write(first, tmp_path / "run")
    again = recipe_of(base, begin, "continued", "classification")
    assert np.array_equal(make_worker(again).initial, first.initial)
    changed = other_base(base, tmp_path / "changed")
    for change, words in (
        ({"labels": LABELS[::-1]}, "has other labels than model.labels"),
        ({"name": str(changed)}, "is of another base model, sha256:"),
    ):
        model = again.model.model_copy(update=change)
        with pytest.raises(ModelError, match=words):
            make_worker(ModelRecipe(model, again.lora, 3, again.compute))
    facts = json.loads((begin / FACTS).read_text())
    facts["proposal"]["model"]["begin_as"] = "merged"
    (begin / FACTS).write_text(json.dumps(facts))
    with pytest.raises(ModelError, match="another adapter was merged: export that run"):
        make_worker(again)
    write_peft_adapter(begin, base, "classification", target_modules=["query"], scale=0.1)
    with pytest.raises(ConfigError, match=r"is not the file that fedpriv\.json names"):
        make_worker(again)
    (begin / FACTS).write_text(json.dumps({"proposal": []}))
    with pytest.raises(ConfigError, match=r"fedpriv\.json: can't be read"):
        make_worker(again)


def other_base(base: Path, folder: Path) -> Path:
    """The same shapes, other weights."""
    shutil.copytree(base, folder)
    weights = load_file(folder / "model.safetensors")
    weights = {name: value + 0.01 for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["personal", "alone"])
def test_a_sites_own_adapter_is_refused_wherever_its_files_go(
    tmp_path: Path, model_folder: Make, kind: Any
) -> None:
    """What writes it marks the weights, which go wherever they are copied to (law 16)."""
    base, peft = model_folder("llama"), tmp_path / "peft"
    write_peft_adapter(peft, base)
    own = write(
        make_worker(recipe_of(base, peft, "continued", "causal-lm")), tmp_path / "own", kind
    )
    assert read_facts(own).kind == kind
    moved = tmp_path / "public"
    moved.mkdir()
    for name in (CONFIG, WEIGHTS):
        (own / name).rename(moved / name)
    for how in ("continued", "merged"):
        model = ModelSection(name=str(base), begin=str(moved), begin_as=how, max_length=32)
        with pytest.raises(ConfigError, match="trained on a site's own records"):
            make_worker(ModelRecipe(model, LoraSection(), 0, ComputeSection(device="cpu")))


def test_a_wider_adapter_of_a_site_begins_at_none(tmp_path: Path, model_folder: Make) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    write_peft_adapter(begin, base)
    worker = make_worker(recipe_of(base, begin, "continued", "causal-lm"))
    wide = make_worker(wider(worker.recipe, 2))
    wide.vector.write(widened(wide, worker, [(worker.initial, 1.0)]))
    assert Rounded(lambda: logits(worker.model)).off_by(logits(wide.model)) <= 1


def test_a_copy_for_another_thread_begins_there_too(tmp_path: Path, model_folder: Make) -> None:
    base, begin = model_folder("llama"), tmp_path / "adapter"
    write_peft_adapter(begin, base)
    worker = make_worker(recipe_of(base, begin, "merged", "causal-lm"))
    assert copy.deepcopy(worker.base).begin_digest == worker.base.begin_digest
