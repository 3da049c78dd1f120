"""Libraries take a site model as any other model: pipelines, and an evaluation harness."""

from __future__ import annotations

import pytest
import torch
from transformers import pipeline

from tests.arithmetic import Rounded
from tests.serving.answering import Made, MakeSiteModel

PROMPT = "the patient"


@pytest.mark.slow
def test_a_pipeline_writes(llama: Made) -> None:
    tokenizer = llama.worker.base.tokenizer
    row = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    start = row.shape[1]
    for _ in range(4):
        row = torch.cat([row, llama.mean(input_ids=row)[:, -1].argmax(-1, keepdim=True)], 1)
    write = pipeline("text-generation", model=str(llama.folder))
    found = write(PROMPT, max_new_tokens=4, do_sample=False, return_full_text=False)
    assert found[0]["generated_text"] == tokenizer.decode(row[0, start:], skip_special_tokens=True)


@pytest.mark.slow
def test_a_pipeline_labels(make_site_model: MakeSiteModel) -> None:
    made = make_site_model("bert", task="classification")
    label = pipeline("text-classification", model=str(made.folder))
    found = {one["label"]: one["score"] for one in label(PROMPT, top_k=None)}
    batch = made.worker.base.tokenizer(PROMPT, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    expected = Rounded(lambda: made.mean(input_ids=ids, attention_mask=mask)[0].exp())
    assert expected.off_by([found[name] for name in ("no", "yes", "may be")]) <= 1


def test_the_evaluation_harness_finds_the_likelihoods(llama: Made) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install '.[test]'")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    pairs = [("the patient has", " fever"), ("chest", " pain")]
    harness = HFLM(pretrained=str(llama.folder), device="cpu", dtype="float32", batch_size=2)
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = [value for value, _ in harness.loglikelihood(asked, disable_tqdm=True)]
    tokenizer = llama.worker.base.tokenizer

    def likelihoods() -> torch.Tensor:
        sums = []
        for prompt, text in pairs:
            ids = torch.tensor([tokenizer(prompt + text)["input_ids"]])
            logs = llama.mean(input_ids=ids)[0, :-1].gather(1, ids[0, 1:, None])
            sums.append(logs[len(tokenizer(prompt)["input_ids"]) - 1 :].sum())
        return torch.stack(sums)

    assert Rounded(likelihoods).off_by(found) <= 1
