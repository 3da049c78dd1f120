"""The digest is of what is stored: no way to load it changes it, every other change does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedpriv.errors import ModelError
from fedpriv.models.base import load_base, load_tokenizer
from fedpriv.models.config import ModelSection
from fedpriv.models.digest import base_digest, find_base
from fedpriv.models.stored import digest_of

Make = Callable[..., Any]
WEIGHTS = "model.safetensors"


def digest(folder: Path) -> str:
    return digest_of(str(folder))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.fixture
def folder(model_folder: Make, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "base"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_it_does_not_depend_on_what_a_site_computes_in(folder: Path, dtype: str) -> None:
    base = load_base(ModelSection(name=str(folder)), dtype=dtype)
    assert base.model.dtype == getattr(torch, dtype)
    assert base.digest == digest(folder)


def test_it_does_not_depend_on_files_and_their_order(folder: Path) -> None:
    before, tensors = digest(folder), load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    shards = {"b.safetensors": sorted(tensors)[::2], "a.safetensors": sorted(tensors)[1::2]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
    where = {name: file for file, names in shards.items() for name in names}
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    assert digest(folder) == before
    assert load_base(ModelSection(name=str(folder))).digest == before


def test_it_does_not_depend_on_the_task(folder: Path) -> None:
    classifier = ModelSection(name=str(folder), task="classification", labels=("no", "yes"))
    assert load_base(classifier).digest == digest(folder)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_bit_of_one_weight_changes_it(model_folder: Make, tmp_path: Path, data: Any) -> None:
    folder = Path(model_folder("llama"))
    tokenizer = load_tokenizer(ModelSection(name=str(folder)))
    content = bytearray((folder / WEIGHTS).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[data.draw(st.integers(header, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / WEIGHTS).write_bytes(content)
    assert base_digest(find_base(str(tmp_path)), tokenizer) != digest(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda weights: {f"x.{name}": value for name, value in weights.items()},
        lambda weights: {name: value.bfloat16().float() for name, value in weights.items()},
        lambda weights: {name: value.double() for name, value in weights.items()},
        lambda weights: {name: value.reshape(-1) for name, value in weights.items()},
        lambda weights: dict(sorted(weights.items())[1:]),
    ],
    ids=["names", "values", "dtype", "shape", "missing"],
)
def test_other_tensors_change_it(folder: Path, edit: Any) -> None:
    before, tensors = digest(folder), load_file(folder / WEIGHTS)
    save_file(edit(tensors), folder / WEIGHTS)
    assert digest(folder) != before


@pytest.mark.parametrize(
    ("file", "values", "same"),
    [
        ("config.json", {"rms_norm_eps": 1e-5}, False),
        ("config.json", {"rope_theta": 5e5}, False),
        ("config.json", {"dtype": "bfloat16", "transformers_version": "5.10.0"}, True),
        ("config.json", {"architectures": [], "id2label": {"0": "no"}}, True),
        ("config.json", {"_commit_hash": None}, True),  # as transformers 5.17 reads every file
        ("tokenizer_config.json", {"eos_token": "a"}, False),
        ("tokenizer_config.json", {"chat_template": "{{ messages }}"}, False),
        ("tokenizer_config.json", {"padding_side": "left"}, False),
        ("tokenizer_config.json", {"split_special_tokens": True}, False),
        ("tokenizer_config.json", {"truncation_side": "left"}, True),  # it makes no difference
        ("generation_config.json", {"temperature": 0.5}, True),
    ],
)
def test_settings_change_it_where_they_decide_a_gradient(
    folder: Path, file: str, values: dict[str, Any], same: bool
) -> None:
    before = digest(folder)
    change(folder / file, **values)
    assert (digest(folder) == before) == same


def test_the_vocabulary_changes_it(folder: Path) -> None:
    before = digest(folder)
    words = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    assert digest(folder) != before


@pytest.mark.parametrize(
    ("ranks", "same"), [({("a", "b"): 0, ("b", "c"): 1}, True), ({("b", "c"): 0}, False)]
)
def test_the_merges_of_a_tokenizer_in_python_change_it(
    folder: Path, ranks: dict[tuple[str, str], int], same: bool
) -> None:
    def made(found: dict[tuple[str, str], int]) -> Any:
        return SimpleNamespace(
            get_vocab=lambda: {"a": 0}, special_tokens_map={}, chat_template=None,
            padding_side="right", bpe_ranks=found,
        )  # fmt: skip

    stored = find_base(str(folder))
    known = base_digest(stored, made({("a", "b"): 0, ("b", "c"): 1}))
    assert (base_digest(stored, made(ranks)) == known) == same


def test_weights_that_the_configuration_names_are_those_that_count(folder: Path) -> None:
    before, tensors = digest(folder), load_file(folder / WEIGHTS)
    change(folder / "config.json", transformers_weights="other.safetensors")
    save_file(tensors, folder / "other.safetensors", {"format": "pt"})
    assert digest(folder) == before
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "other.safetensors", {"format": "pt"})
    base = load_base(ModelSection(name=str(folder)))
    assert base.digest != before
    assert torch.equal(base.model.model.norm.weight, tensors["model.norm.weight"])


def test_a_configuration_in_another_file_is_the_one_that_counts(folder: Path) -> None:
    before = digest(folder)
    settings = json.loads((folder / "config.json").read_text()) | {"rms_norm_eps": 0.5}
    (folder / "config.4.0.0.json").write_text(json.dumps(settings))
    change(folder / "config.json", configuration_files=["config.4.0.0.json"])
    base = load_base(ModelSection(name=str(folder)))
    assert base.model.config.rms_norm_eps == 0.5
    assert base.digest != before


def test_a_tensor_that_is_stored_twice_is_refused(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    for file in ("a.safetensors", "b.safetensors"):
        save_file(tensors, folder / file, {"format": "pt"})
    where = dict.fromkeys(tensors, "a.safetensors") | {"model.norm.weight": "b.safetensors"}
    index = {"metadata": {}, "weight_map": where}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="in another file, too"):
        digest(folder)


def test_an_adapter_beside_the_weights_is_refused(folder: Path) -> None:
    """It would be loaded on top of them, and no digest would tell."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"])).save_pretrained(folder)
    with pytest.raises(ModelError, match="holds an adapter"):
        digest(folder)
    with pytest.raises(ModelError, match="holds an adapter"):
        load_base(ModelSection(name=str(folder)))


@pytest.mark.parametrize("damage", ["cut", "none"])
def test_weights_that_cannot_be_read(folder: Path, damage: str) -> None:
    if damage == "cut":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1])
    else:
        (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"model\.name"):
        digest(folder)
    with pytest.raises(ModelError, match=r"model\.name"):
        load_base(ModelSection(name=str(folder)))


def test_a_hub_name_is_the_same_base_as_its_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it lies in the cache: whatever the hub shows next is another revision."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    repository, revision = cache / "models--clinic--base", "a" * 40
    shutil.copytree(folder, repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    assert find_base("clinic/base").revision == revision
    assert digest_of("clinic/base") == digest(folder)
    assert load_base(ModelSection(name="clinic/base")).digest == digest(folder)
