"""A classifier on the mean of an encoder's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedpriv.models.config import ModelSection
from fedpriv.private_training.probe import probe_gradients

Make = Callable[..., Any]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_it_is_the_mean_over_a_records_own_tokens(make_worker: Make, kind: str) -> None:
    worker = make_worker(kind, task="classification", pooling="mean")
    model = worker.base.model
    torch.nn.init.normal_(model.classifier.weight)
    ids = torch.randint(5, 60, (1, 9))
    padded = torch.cat([ids, torch.full((1, 4), worker.base.tokenizer.pad_token_id)], 1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(1, 4, dtype=ids.dtype)], 1)
    with torch.no_grad():
        hidden = model.encoder(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        expected = hidden[0].mean(0) @ model.classifier.weight.T + model.classifier.bias
        found = model(input_ids=padded, attention_mask=mask).logits[0]
    assert torch.allclose(found, expected, atol=1e-10)


def test_it_starts_at_even_odds_and_its_head_is_trained(make_worker: Make) -> None:
    worker = make_worker("bert", task="classification", pooling="mean")
    head = [name for name, _ in worker.model.named_parameters() if "classifier" in name]
    trained = {name for name, value in worker.model.named_parameters() if value.requires_grad}
    assert trained & set(head)
    assert any("lora_" in name for name in trained)
    ids = torch.randint(5, 60, (2, 7))
    with torch.no_grad():
        logits = worker.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    assert torch.equal(logits, torch.zeros_like(logits))
    probe_gradients(worker)  # exact for each record, or refused


def test_pooling_is_for_classification() -> None:
    with pytest.raises(ValueError, match="pooling belongs"):
        ModelSection(pooling="mean")
