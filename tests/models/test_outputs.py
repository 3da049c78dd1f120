"""Labels and tokens agree with a model's outputs and rows, or it is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from fedpriv.errors import ConfigError, FedprivError, ModelError
from fedpriv.models.base import Base, load_base
from fedpriv.models.config import ModelSection
from fedpriv.models.outputs import check_outputs, stored_names

Make = Callable[..., Any]
PAIR = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
KINDS = ("bert", "roberta", "distilbert", "llama")


@pytest.fixture
def classifier(tmp_path: Path, model_folder: Make) -> Make:
    """A factory of folders with a classifier that is sure of its first class."""

    def make(kind: str = "bert", **changes: Any) -> Path:
        source = model_folder(kind)
        folder = tmp_path / kind
        shutil.copytree(source, folder, dirs_exist_ok=True)
        model = AutoModelForSequenceClassification.from_pretrained(source, **{**PAIR, **changes})
        head = model.score if kind == "llama" else model.classifier
        last: Any = getattr(head, "out_proj", head)
        with torch.no_grad():
            last.weight.zero_()
            if last.bias is None:
                last.weight[0] += 1  # after an RMS norm, of whichever sign
            else:
                last.bias[0] = 5.0
        model.save_pretrained(folder)
        return folder

    return make


def loaded(folder: Path, *labels: str, pooling: Any = "own") -> Base:
    section = ModelSection(name=str(folder), task="classification", labels=labels, pooling=pooling)
    return load_base(section)


def logits(base: Base) -> torch.Tensor:
    ids = torch.arange(3, 20)[None]
    found: Any = base.model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return found.logits[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_head_keeps_its_own_order(kind: str, classifier: Make) -> None:
    folder = classifier(kind)
    stored = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ids = torch.arange(3, 20)[None]
    expected = stored(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
    for labels in (("neg", "pos"), ("Neg", " POS")):
        torch.testing.assert_close(logits(loaded(folder, *labels)), expected, atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="another order") as found:
        loaded(folder, "pos", "neg")
    assert "['neg', 'pos']" in found.value.fix


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [("good", "bad"), ("neg", "bad"), ("a", "b", "c")])
def test_a_head_for_other_classes_starts_at_even_odds_and_says_so(
    kind: str, labels: tuple[str, ...], classifier: Make, caplog: pytest.LogCaptureFixture
) -> None:
    base = loaded(classifier(kind), *labels)
    assert torch.equal(logits(base), torch.zeros(len(labels)))
    [record] = (one for one in caplog.records if one.name.startswith("fedpriv"))
    assert "for neg, pos" in record.message and f"anew, for {', '.join(labels)}" in record.message


def test_names_that_say_nothing_are_no_names(
    classifier: Make, caplog: pytest.LogCaptureFixture
) -> None:
    folder = classifier(id2label={0: "LABEL_0", 1: "LABEL_1"}, label2id={})
    assert logits(loaded(folder, "pos", "neg"))[0] == 5
    assert not [one for one in caplog.records if one.name.startswith("fedpriv")]


def test_a_mean_of_the_tokens_has_a_head_of_its_own(
    classifier: Make, caplog: pytest.LogCaptureFixture
) -> None:
    base = loaded(classifier(), "pos", "neg", pooling="mean")
    assert torch.equal(logits(base), torch.zeros(2))
    assert not [one for one in caplog.records if one.name.startswith("fedpriv")]


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_a_head_that_does_not_choose_one_class_is_refused(
    problem: str, classifier: Make, byte_tokenizer: Any
) -> None:
    folder = classifier(problem_type=problem)
    with pytest.raises(ModelError, match="problem_type"):
        loaded(folder, "neg", "pos")
    loaded(folder, "neg", "pos", pooling="mean")  # which uses no head of its own
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    section = ModelSection(name="m", task="classification", labels=("neg", "pos"))
    with pytest.raises(ModelError, match="problem_type"):
        check_outputs(model, byte_tokenizer, section)


@pytest.mark.parametrize(
    ("labels", "changes", "words"),
    [
        (("neg", "pos"), {}, None),
        (("a", "b"), {"id2label": {0: "LABEL_0", 1: "LABEL_1"}}, None),
        (("pos", "neg"), {}, "another order"),
        (("a", "b"), {}, "not those of the model, neg, pos"),
        (("neg", "pos", "a"), {}, "are 3, and the model has 2 outputs"),
        (("a", "b"), {"num_labels": 5, "id2label": None}, "are 2, and the model has 5 outputs"),
        ((), {}, "one output a text"),
    ],
)
def test_labels_are_held_against_the_outputs(
    labels: tuple[str, ...],
    changes: dict[str, Any],
    words: str | None,
    classifier: Make,
    byte_tokenizer: Any,
) -> None:
    given = {key: value for key, value in {**PAIR, **changes}.items() if value is not None}
    folder = classifier(id2label={0: "LABEL_0", 1: "LABEL_1"}, label2id={})
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, ignore_mismatched_sizes=True, **given
    )
    task: Any = "classification" if labels else "causal-lm"
    section = ModelSection(name="m", task=task, labels=labels)
    if words is None:
        check_outputs(model, byte_tokenizer, section)
        return
    with pytest.raises(FedprivError, match=words):
        check_outputs(model, byte_tokenizer, section)


def test_a_language_model_is_no_classifier(model_folder: Make, byte_tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    section = ModelSection(name="m", task="classification", labels=("a", "b"))
    with pytest.raises(ModelError, match="AutoModelForSequenceClassification"):
        check_outputs(model, byte_tokenizer, section)
    check_outputs(model, byte_tokenizer, ModelSection(name="m"))


def test_every_token_has_a_row_and_an_output(model_folder: Make, byte_tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_folder("llama"))
    section = ModelSection(name="m")
    model.lm_head = torch.nn.Linear(32, 200)
    with pytest.raises(ModelError, match="the model predicts 200"):
        check_outputs(model, byte_tokenizer, section)
    model.resize_token_embeddings(100)
    with pytest.raises(ModelError, match=f"knows {len(byte_tokenizer)} tokens, the model 100"):
        check_outputs(model, byte_tokenizer, section)


@pytest.mark.parametrize(
    ("stored", "names"),
    [
        ({"1": "b", "0": "a"}, ["a", "b"]),
        ({0: "a", 1: "LABEL_1"}, ["a", "LABEL_1"]),
        ({"0": "LABEL_0", "1": "label_1"}, []),
        ({str(n): str(n) for n in range(12)}, list(map(str, range(12)))),
        (None, []),
        ({}, []),
        (["a"], []),
        ({"x": "a"}, []),
    ],
)
def test_names_are_read_in_the_order_of_the_outputs(stored: Any, names: list[str]) -> None:
    assert stored_names(stored) == names
    if isinstance(stored, dict):
        assert stored_names(json.loads(json.dumps(stored))) == names
