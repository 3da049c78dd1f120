"""Several adapters on one base answer each token together, by transformers' own means."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.serving.answering import MakeSiteModel

WRITERS = ("llama", "gpt2", "gpt_neox", "mistral", "qwen3", "phi", "gemma")


def texts(count: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(3, 300, (count, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", WRITERS)
def test_it_answers_with_the_mean_of_the_probabilities(
    kind: str, make_site_model: MakeSiteModel
) -> None:
    made = make_site_model(kind)
    model = AutoModelForCausalLM.from_pretrained(made.folder)
    ids = texts()
    with torch.no_grad():
        found = model(input_ids=ids).logits
    expected = made.mean(input_ids=ids)
    assert (found - expected).abs().max() < 1e-4
    with torch.no_grad():
        out = model.generate(ids, do_sample=False, max_new_tokens=6, eos_token_id=None)
    row = ids
    for _ in range(6):
        row = torch.cat([row, made.mean(input_ids=row)[:, -1].argmax(-1, keepdim=True)], 1)
    assert out.tolist() == row.tolist()
