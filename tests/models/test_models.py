from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.base_model import EMBEDDED
from fedpriv.errors import ConfigError, ModelError, ProtocolError
from fedpriv.models.base import POSITIONS, load_base, load_tokenizer, longest
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.lora import attach_lora
from fedpriv.models.vector import TrainableVector, check_vector
from tests.small_models import small_config

Make = Callable[..., Any]


def test_the_embedded_model_is_an_ordinary_folder_under_ten_megabytes() -> None:
    base = load_base(ModelSection(name="embedded"))
    assert sum(p.stat().st_size for p in EMBEDDED.parent.rglob("*") if p.is_file()) < 10e6
    assert base.tokenizer.pad_token_id not in (None, base.tokenizer.eos_token_id)
    text = "The patient denies chest pain."
    ids = base.tokenizer(text)["input_ids"]
    assert ids[0] == base.tokenizer.bos_token_id
    assert base.tokenizer.decode(ids, skip_special_tokens=True) == text
    recipe = json.loads((EMBEDDED / "recipe.json").read_text())
    assert recipe["parameters"] == sum(p.numel() for p in base.model.parameters())
    assert not any(p.requires_grad for p in base.model.parameters())


def test_the_digest_is_that_of_the_weights(model_folder: Make) -> None:
    folder = str(model_folder("llama"))
    one, two = (load_base(ModelSection(name=folder)) for _ in "ab")
    assert one.digest == two.digest
    assert one.digest != load_base(ModelSection(name=str(model_folder("gpt2")))).digest


@pytest.mark.parametrize("kind", ["llama", "roberta"])
def test_a_new_head_starts_at_even_odds_and_is_no_part_of_the_base(
    model_folder: Make, kind: str
) -> None:
    def classifier(seed: int, labels: str) -> Any:
        settings = ModelSection(
            name=str(model_folder(kind)), task="classification", labels=tuple(labels)
        )
        return load_base(settings, seed=seed)

    one, other, more = classifier(1, "abc"), classifier(2, "abc"), classifier(1, "abcd")
    ids = torch.arange(3, 20)[None]
    assert torch.equal(one.model(input_ids=ids).logits, torch.zeros(1, 3))
    assert one.digest == other.digest == more.digest


@pytest.mark.parametrize("name", ["no/such-model", "/no/such/folder"])
def test_a_model_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelError, match=r"model\.name"):
        load_base(ModelSection(name=name))


@pytest.mark.parametrize(
    ("kind", "labels", "pooling", "lost"),
    [
        ("llama", "", "own", "model.layers.1.mlp.up_proj.weight"),
        ("llama", "", "own", "lm_head.weight"),
        ("gpt2", "ab", "own", "transformer.h.1.mlp.c_fc.bias"),
        ("roberta", "ab", "own", "roberta.encoder.layer.0.output.dense.weight"),
        ("roberta", "ab", "mean", "roberta.encoder.layer.0.output.dense.weight"),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_a_model_without_all_of_its_weights_is_refused(
    model_folder: Make, tmp_path: Path, kind: str, labels: str, pooling: str, lost: str, cut: bool
) -> None:
    """They would be drawn at random. A classifier's new head is, and is no fault."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path / kind
    shutil.copytree(model_folder(kind), folder)
    named = {"task": "classification", "labels": tuple(labels), "pooling": pooling}
    section = ModelSection(name=str(folder), **(named if labels else {}))
    assert load_base(section)
    weights = load_file(folder / "model.safetensors")
    whole = weights.pop(lost)
    if cut:
        weights[lost] = whole[:-1].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.name: .*") as caught:
        load_base(section)
    if not cut or (pooling == "own" and labels):
        assert lost.removeprefix("roberta.") in str(caught.value)
        assert "lack weights, or have them in other shapes" in str(caught.value)


def test_an_encoder_of_a_language_model_has_no_pooler_and_a_tied_layer_is_not_lost(
    model_folder: Make, tmp_path: Path, byte_tokenizer: Any
) -> None:
    import transformers

    for kind, factory in (("bert", "MaskedLM"), ("gpt2", "CausalLM")):
        model: Any = getattr(transformers, f"AutoModelFor{factory}")
        model.from_config(small_config(kind)).save_pretrained(tmp_path / kind)
        byte_tokenizer.save_pretrained(tmp_path / kind)
    bert: Any = {"name": str(tmp_path / "bert"), "task": "classification", "labels": ("a", "b")}
    assert "bert.pooler.dense.weight" in load_base(ModelSection(**bert)).drawn
    assert load_base(ModelSection(**bert, pooling="mean"))
    assert not load_base(ModelSection(name=str(tmp_path / "gpt2"))).drawn


def test_pickled_weights_are_never_loaded(model_folder: Make, tmp_path: Path) -> None:
    """Only safetensors: a folder with a pickle alone is refused, and its code is not run."""
    folder = tmp_path / "pickled"
    shutil.copytree(model_folder("llama"), folder)
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (marker,))

    torch.save({"x": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_base(ModelSection(name=str(folder)))
    assert not marker.exists()


def test_code_of_a_models_folder_is_never_run(model_folder: Make, tmp_path: Path) -> None:
    folder = tmp_path / "custom"
    shutil.copytree(model_folder("llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Model",
                                                  "AutoConfig": "mine.Config"}}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    marker = tmp_path / "ran"
    (folder / "mine.py").write_text(f"open({str(marker)!r}, 'w')")
    with pytest.raises(ModelError):
        load_base(ModelSection(name=str(folder)))
    assert not marker.exists()


def test_a_tokenizer_without_padding_pads_with_its_end(
    byte_tokenizer: Any, model_folder: Make, tmp_path: Path
) -> None:
    from transformers import PreTrainedTokenizerFast

    bare = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer._tokenizer, eos_token="<eos>")
    bare.save_pretrained(tmp_path / "a")
    assert load_tokenizer(ModelSection(name=str(tmp_path / "a"))).pad_token == "<eos>"
    none = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer._tokenizer)
    none.save_pretrained(tmp_path / "b")
    with pytest.raises(ModelError, match="no padding and no end token"):
        load_tokenizer(ModelSection(name=str(tmp_path / "b")))


def test_the_adapter_starts_as_the_identity_and_from_the_seed(model_folder: Make) -> None:
    def vector(seed: int) -> np.ndarray:
        base = load_base(ModelSection(name=str(model_folder("llama"))))
        ids = torch.arange(3, 20)[None]
        before = base.model(input_ids=ids).logits
        model = attach_lora(base, LoraSection(r=3), "causal-lm", seed=seed)
        assert torch.equal(before, model(input_ids=ids).logits)
        return TrainableVector(model).read()

    torch.manual_seed(99)
    state = torch.random.get_rng_state()
    assert np.array_equal(vector(1), vector(1))
    assert not np.array_equal(vector(1), vector(2))
    assert torch.equal(state, torch.random.get_rng_state())


def test_targets_that_match_nothing_are_refused_with_what_there_is(model_folder: Make) -> None:
    base = load_base(ModelSection(name=str(model_folder("llama"))))
    for targets in (("query",), ("q_proj", "nothing")):
        with pytest.raises(ConfigError, match=r"lora\.target_modules.*q_proj"):
            attach_lora(base, LoraSection(target_modules=targets), "causal-lm", seed=0)


def test_the_vector_is_read_and_written_whole(make_worker: Make) -> None:
    worker = make_worker("gpt2", dtype="float32")
    values = np.random.default_rng(0).normal(size=worker.vector.size).astype(np.float32)
    worker.vector.write(values)
    assert np.array_equal(worker.vector.read(), values)
    names = [name for name, p in worker.model.named_parameters() if p.requires_grad]
    assert worker.vector.names == names


@settings(max_examples=30)
@given(st.sampled_from(["shape", "dtype", "nan", "inf"]), st.integers(0, 6))
def test_a_vector_that_does_not_fit_is_refused(what: str, position: int) -> None:
    vector = np.zeros(7, dtype=np.float32)
    check_vector(vector, 7)
    if what == "shape":
        vector = vector[:position]
    elif what == "dtype":
        vector = vector.astype(np.float64)
    else:
        vector[position] = float(what)
    with pytest.raises(ProtocolError, match="Expected"):
        check_vector(vector, 7)


def test_a_frozen_a_is_no_part_of_the_vector_but_of_its_digest(model_folder: Make) -> None:
    """Two parties with another lora_A would mean other updates by the same numbers."""

    def made(seed: int, frozen: bool) -> TrainableVector:
        base = load_base(ModelSection(name=str(model_folder("llama"))))
        settings = LoraSection(r=2, frozen_a=frozen)
        return TrainableVector(attach_lora(base, settings, "causal-lm", seed=seed))

    one, other, whole = made(0, True), made(1, True), made(0, False)
    assert all(".lora_B." in name for name in one.names)
    assert one.size < whole.size
    assert one.names == other.names and one.digest != other.digest == made(1, True).digest
    assert whole.digest == made(1, False).digest  # trained, so it is sent


@pytest.mark.parametrize("key", POSITIONS)
def test_no_record_is_longer_than_the_model_reads(key: str) -> None:
    config = SimpleNamespace(**{key: 7})
    model: Any = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: config), named_modules=list
    )
    assert longest(model) == 7


def test_positions_are_counted_from_the_tokenizers_own_padding(
    model_folder: Make, tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder("roberta"), tmp_path / "other")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pad_token_id": 7}))
    settings = ModelSection(name=str(folder), task="classification", labels=("a", "b"))
    with pytest.raises(ModelError, match="from another padding token"):
        load_base(settings)


def test_what_peft_would_train_besides_is_refused(model_folder: Make) -> None:
    base = load_base(ModelSection(name=str(model_folder("llama"))))
    for whole in ("norm", "layernorm"):
        lora = LoraSection(r=1, target_modules=("q_proj",), modules_to_save=(whole,))
        with pytest.raises(ConfigError, match=r"lora\.modules_to_save: (would train|matches no)"):
            attach_lora(base, lora, "causal-lm", seed=0)
    lora = lora.model_copy(update={"modules_to_save": ("model.norm",)})
    names = TrainableVector(attach_lora(base, lora, "causal-lm", seed=0)).names
    assert [name for name in names if "modules_to_save" in name] == [
        "base_model.model.model.norm.modules_to_save.default.weight"
    ]
