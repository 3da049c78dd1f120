"""What a batch computes is what transformers computes of each text alone, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import LABELS, save_tiny

from fedpriv.data.batch import Batch
from fedpriv.errors import NotPrivateError
from fedpriv.models import trial
from fedpriv.models.base import load_base
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.lora import attach_lora
from fedpriv.models.trial import AS_IT_IS, MEANT, Trial
from fedpriv.private_training.record_loss import record_losses
from tests.arithmetic import Rounded, permuted_products

Make = Callable[..., Any]
LENGTHS = (3, 11, 26)


def section(folder: Path, task: Any = "causal-lm", **more: Any) -> ModelSection:
    labels = LABELS if task == "classification" else ()
    return ModelSection(name=str(folder), task=task, labels=labels, max_length=32, **more)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A folder of a small random model of that kind, with a stored head."""

    def make(kind: str, task: Any = "causal-lm", **more: Any) -> Path:
        folder = tmp_path_factory.mktemp(kind)
        save_tiny(kind, task, folder, id2label=dict(enumerate(LABELS)), **more)
        return folder

    return make


def padded(tokens: int) -> Batch:
    width = max(LENGTHS)
    ids = torch.randint(
        5, tokens, (len(LENGTHS), width), generator=torch.Generator().manual_seed(0)
    )
    mask = torch.stack([(torch.arange(width) < length).long() for length in LENGTHS])
    return Batch(torch.where(mask == 1, ids, 0), mask, torch.where(mask == 1, ids, -100))


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        ("bloom", "causal-lm"),
        ("mpt", "causal-lm"),
        ("xglm", "causal-lm"),
        ("gpt_neo", "causal-lm"),
        ("falcon", "causal-lm"),
        ("gemma2", "causal-lm"),
        ("llama", "causal-lm"),
        ("megatron-bert", "classification"),
        ("roformer", "classification"),
        ("rembert", "classification"),
        ("big_bird", "classification"),
        ("mpnet", "classification"),
    ],
)
def test_losses_of_a_padded_batch_are_those_of_transformers_alone(
    tiny: Make, kind: str, task: Any
) -> None:
    folder = tiny(kind, task)
    model: Any = load_base(section(folder, task)).model
    batch = padded(4000)
    if task == "classification":
        with torch.no_grad():
            model.classifier.load_state_dict(_stored(folder, task).classifier.state_dict())
        batch = Batch(batch.input_ids, batch.attention_mask, torch.tensor([0, 1, 0]))
    stored = _stored(folder, task)

    def alone() -> torch.Tensor:
        losses = []
        for ids, length, label in zip(batch.input_ids, LENGTHS, batch.labels, strict=True):
            labels = label[None] if task == "classification" else ids[None, :length]
            losses.append(stored(input_ids=ids[None, :length], labels=labels).loss)
        return torch.stack(losses)

    assert Rounded(alone).off_by(record_losses(model, batch)) <= 1


def _stored(folder: Path, task: Any) -> Any:
    auto = {
        "causal-lm": transformers.AutoModelForCausalLM,
        "classification": transformers.AutoModelForSequenceClassification,
    }[task]
    return auto.from_pretrained(folder, dtype="float32").requires_grad_(False).eval()


@pytest.mark.parametrize(
    ("kind", "task", "said"),
    [
        ("xlnet", "causal-lm", "sees the tokens that it is to predict"),
        ("nystromformer", "classification", "other results for a padded text"),
        ("convbert", "classification", "other results for a padded text"),
        ("fnet", "classification", "other results for a padded text"),
        ("mra", "classification", "unclear whether it reads padding"),
        ("canine", "classification", "can't compute a text by itself"),
    ],
)
def test_what_reads_padding_or_later_tokens_is_refused_by_name(
    tiny: Make, kind: str, task: Any, said: str
) -> None:
    with pytest.raises(NotPrivateError, match=rf"{kind}.* {said}"):
        load_base(section(tiny(kind, task), task))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_trial_leaves_the_model_as_it_was(tiny: Make, dtype: torch.dtype) -> None:
    base = load_base(section(tiny("llama")))
    base.model.to(dtype)
    with torch.no_grad():
        base.model.lm_head.weight.zero_()
    before = {name: value.clone() for name, value in base.model.state_dict().items()}
    tried = Trial(base.model, base.tokenizer, 32, scales=(8,))
    assert tried.off_by() <= 1 and not tried.sees_later_tokens()
    for name, value in base.model.state_dict().items():
        assert value.dtype == dtype and torch.equal(value, before[name])


def test_weights_are_scaled_until_tokens_matter_to_each_other(tiny: Make) -> None:
    base = load_base(section(tiny("llama")))
    with torch.no_grad():
        for name, value in base.model.named_parameters():
            if "o_proj" in name or "v_proj" in name:
                value.mul_(0.04)
    assert Trial(base.model, base.tokenizer, 32, scales=(1,)).meant < MEANT
    assert Trial(base.model, base.tokenizer, 32).meant >= MEANT


def test_an_attention_that_reads_a_little_padding_is_found(tiny: Make) -> None:
    """A leak of a thousandth of what an earlier token does."""
    base = load_base(section(tiny("llama")))
    tried = Trial(base.model, base.tokenizer, 32)
    assert tried.off_by() <= 1
    norm: Any = base.model.model.norm
    plain = norm.forward
    norm.forward = lambda x: plain(x + 1e-3 * x[:, -1:])
    assert tried.off_by() > 1


@pytest.mark.parametrize("drawn", range(4))
def test_sums_in_another_order_are_no_other_model(
    drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large adapter blows rounding up, and more so in a long text than in a short one."""
    monkeypatch.setattr(trial, "TEXTS", drawn)
    base = load_base(ModelSection(max_length=64))
    model = attach_lora(base, LoraSection(r=2), "causal-lm", seed=0).eval()
    generator = torch.Generator().manual_seed(0)
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.data.copy_(torch.randn(value.shape, generator=generator))
    here = Trial(model, base.tokenizer, 64, scales=AS_IT_IS)
    with permuted_products(drawn):
        assert here.other_off_by(model) <= 1
        assert here.off_by() <= 1


@pytest.mark.parametrize("targets", ["auto", "all-linear"])
def test_of_a_model_that_sees_pictures_only_what_reads_text_is_adapted(
    tiny: Make, targets: Any
) -> None:
    base = load_base(section(tiny("gemma3")))
    model = attach_lora(base, LoraSection(r=2, target_modules=targets), "causal-lm", seed=0)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained and all("language_model" in name for name in trained)
