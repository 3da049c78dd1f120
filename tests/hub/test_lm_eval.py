"""lm-evaluation-harness takes the adapter of a run as it is: a local task, local data, no hub."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.arithmetic import Rounded
from tests.hub.hub_runs import MakeRun

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install '.[test]'")
pytestmark = pytest.mark.nightly

PAIRS = [("the patient has", " fever"), ("chest", " pain and cough"), ("lungs", " clear")]
TOKENS = 259  # of the tokenizer; beside an adapter, the harness cuts off what a model has beyond
TASK = """
task: notes
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
  cache_dir: {cache}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{completion}}}}"
target_delimiter: ""
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
"""


def perplexity(folder: Path, **model: Any) -> float:
    """What the harness finds."""
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=HFLM(device="cpu", dtype="float32", **model),
        tasks=["notes"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found is not None
    return float(found["results"]["notes"]["perplexity,none"])


def ours(worker: Any) -> float:
    """The same of the model that was trained, by hand."""
    tokenizer, likelihoods = worker.base.tokenizer, []
    for prompt, completion in PAIRS:
        ids = torch.tensor([tokenizer(prompt + completion)["input_ids"]])
        known = len(tokenizer(prompt)["input_ids"])
        with torch.inference_mode():
            logs = worker.model(input_ids=ids).logits.log_softmax(-1)
        likelihoods.append(
            sum(logs[0, i - 1, ids[0, i]].item() for i in range(known, ids.shape[1]))
        )
    return math.exp(-sum(likelihoods) / len(likelihoods))


def test_it_finds_the_likelihoods_of_the_model_that_was_trained(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run, worker = make_run(model={"vocab_size": TOKENS})
    data, folder = tmp_path / "test.jsonl", tmp_path / "task"
    rows = [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder.mkdir()
    (folder / "notes.yaml").write_text(TASK.format(data=data, cache=tmp_path / "cache"))
    base = worker.recipe.model.name
    found = perplexity(folder, pretrained=base, peft=str(run / "adapter"))
    assert Rounded(lambda: ours(worker)).off_by(found) <= 1
    assert perplexity(folder, pretrained=base) != pytest.approx(found, rel=1e-2)
