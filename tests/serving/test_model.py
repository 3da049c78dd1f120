"""Several adapters on one base answer each token together, by transformers' own means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import fedpriv.serving
from fedpriv.errors import ConfigError, ModelError
from tests.arithmetic import Rounded
from tests.serving.answering import Made, MakeSiteModel, texts

WRITERS = ("llama", "gpt2", "gpt_neox", "mistral", "qwen3", "phi", "gemma")
LABELLERS = ("bert", "llama", "distilbert", "roberta", "gpt2")


def off_by(made: Made, found: Callable[..., Any], **batch: Tensor) -> float:
    """How far the logits are from the oracle's, as a share of what rounding explains."""
    with torch.no_grad():
        return Rounded(lambda: made.mean(**batch)).off_by(found(**batch).logits)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_it_answers_with_the_mean_of_the_probabilities(
    kind: str, make_site_model: MakeSiteModel
) -> None:
    made = make_site_model(kind)
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    ids = texts(2, 14)  # longer than mistral's window
    assert off_by(made, model, input_ids=ids) <= 1
    out = model.generate(ids, do_sample=False, max_new_tokens=6, eos_token_id=None)
    row = ids
    for _ in range(6):
        row = torch.cat([row, made.mean(input_ids=row)[:, -1].argmax(-1, keepdim=True)], 1)
    assert out.tolist() == row.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"whole": ("lm_head", "embed_tokens")},
        {"tie_word_embeddings": True},
        {"tie_word_embeddings": True, "whole": ("lm_head",)},
        {"quantize": "8bit"},
        {"quantize": "4bit"},
        {"begin_as": "continued", "targets": ["q_proj", "v_proj"]},
        {"begin_as": "merged", "targets": ["q_proj", "v_proj"]},
        {"weights": {"personal": 1.0}},
        {"weights": {"federated": 0.7, "alone": 0.3}},
    ],
    ids=str,
)
def test_it_does_whatever_was_trained(
    changes: dict[str, Any], make_site_model: MakeSiteModel
) -> None:
    made = make_site_model(**changes)
    model = fedpriv.serving.load_site_model(made.folder)
    assert off_by(made, model, input_ids=texts()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "pooling"), [*((kind, "own") for kind in LABELLERS), ("bert", "mean")]
)
def test_labels_have_the_mean_of_the_probabilities(
    kind: str, pooling: str, make_site_model: MakeSiteModel
) -> None:
    made = make_site_model(kind, task="classification", pooling=pooling)
    model = AutoModelForSequenceClassification.from_pretrained(made.folder)
    ids, mask = texts(), torch.ones(2, 9, dtype=torch.long)
    ids[0, 6:], mask[0, 6:] = 0, 0
    assert off_by(made, model, input_ids=ids, attention_mask=mask) <= 1
    labels = torch.tensor([0, 2])
    found = model(input_ids=ids, attention_mask=mask, labels=labels, return_dict=False)
    logits = made.mean(input_ids=ids, attention_mask=mask)
    expected = torch.nn.functional.nll_loss(logits.float(), labels)
    assert found[0].item() == pytest.approx(expected.item(), rel=1e-4)
    assert model.config.id2label == {0: "no", 1: "yes", 2: "may be"}


@pytest.mark.slow
def test_a_base_of_16_bits_stays_one_and_is_computed_in_float32(
    make_site_model: MakeSiteModel,
) -> None:
    made = make_site_model(dtype="bfloat16")
    files = list((made.folder / "base").glob("*.safetensors"))
    values = sum(p.numel() for p in made.worker.base.model.parameters())
    assert sum(file.stat().st_size for file in files) < 2.5 * values
    for dtype in (None, "auto", torch.float32):
        options = {} if dtype is None else {"dtype": dtype}
        model = AutoModelForCausalLM.from_pretrained(made.folder, **options)
        assert off_by(made, model, input_ids=texts()) <= 1


def test_it_may_be_computed_in_16_bits(llama: Made) -> None:
    model = AutoModelForCausalLM.from_pretrained(llama.folder, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    expected = Rounded(lambda: llama.mean(input_ids=texts()), stored=torch.bfloat16)
    with torch.no_grad():
        assert expected.off_by(model(input_ids=texts()).logits) <= 1


def test_packed_weights_compute_the_same_and_can_be_had(llama: Made) -> None:
    model = fedpriv.serving.load_site_model(llama.folder, pack=False)
    assert off_by(llama, model, input_ids=texts()) <= 1
    packed = fedpriv.serving.load_site_model(llama.folder)
    for path, layer in model.named_modules():
        if type(layer).__name__ == "AdapterRows":
            assert torch.equal(packed.get_submodule(path).weight, layer.weight)


def test_the_loss_is_first_as_everywhere_in_transformers(llama: Made) -> None:
    model, ids = fedpriv.serving.load_site_model(llama.folder), texts()
    whole = model(input_ids=ids, labels=ids)
    logits = llama.mean(input_ids=ids)[:, :-1].flatten(0, 1)
    expected = torch.nn.functional.nll_loss(logits, ids[:, 1:].flatten())
    assert whole.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert model(input_ids=ids, labels=ids, return_dict=False)[0] == whole.loss


def test_the_last_logits_alone_are_the_last_ones(llama: Made) -> None:
    model, ids = fedpriv.serving.load_site_model(llama.folder), texts()
    expected = Rounded(lambda: llama.mean(input_ids=ids)[:, -2:])
    with torch.no_grad():
        assert expected.off_by(model(input_ids=ids, logits_to_keep=2).logits) <= 1


@pytest.mark.slow
def test_embeddings_of_no_single_adapter_are_refused(make_site_model: MakeSiteModel) -> None:
    made = make_site_model(whole=("lm_head", "embed_tokens"))
    model = fedpriv.serving.load_site_model(made.folder)
    with pytest.raises(ConfigError, match="inputs_embeds: each adapter has embeddings of its own"):
        model(inputs_embeds=torch.zeros(3, 4, 32))


def test_an_architecture_that_mixes_rows_up_is_refused(make_site_model: MakeSiteModel) -> None:
    with pytest.raises(ModelError, match="a mamba does not compute several adapters at once"):
        make_site_model("mamba")
