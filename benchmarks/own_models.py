"""Why joining does or does not pay: a hospital's own model beside the federation's.

    python benchmarks/own_models.py --json own-models.json

For each embedded hospital, one seed: trains LoRA on its own notes without noise (alone), goes on
from the federation's adapter of ε = 4 (personal), and trains a second adapter on top of it
(second), each until its own validation notes say stop. Prints the losses on validation and on
held-out notes; how long the change of weights of alone and of the federation is, and their cosine;
and the loss of the mean of two models' probabilities by the weight of the second. The notes are
public; samples and noise are drawn from a seed.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.data import Example
from fedpriv.data.batch import buckets
from fedpriv.models.vector import Vector
from fedpriv.personal.training import train_alone
from fedpriv.training.pool import WorkerPool
from fedpriv.training.record_loss import next_tokens
from fedpriv.training.scores import score
from fedpriv.training.worker import ModelRecipe, Worker
from fedpriv_comparison.at_home import OwnExamples, own_examples
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.going_on import go_on
from fedpriv_comparison.trial import run, values_path
from fedpriv_comparison.variants import parse_variants

WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.4)  # of the second model
AT_ONCE = 16
SEED = 1  # the first that `fedpriv compare` reports


@torch.inference_mode()
def change_of_weights(worker: Worker, values: Vector) -> Tensor:
    """All that an adapter adds to the frozen weights, in one row."""
    worker.vector.write(values)
    layers = [m for m in worker.model.modules() if hasattr(m, "get_delta_weight")]
    return torch.cat([layer.get_delta_weight("default").flatten() for layer in layers])


@torch.inference_mode()
def mixtures(worker: Worker, records: Sequence[Example], one: Vector, other: Vector) -> list[float]:
    """The mean loss of the target tokens under the mean of two models' probabilities."""
    totals, count = torch.zeros(len(WEIGHTS), dtype=torch.float64), 0
    for length, members in buckets(records, worker.recipe.model.max_length).items():
        for start in range(0, len(members), AT_ONCE):
            chosen = [records[i] for i in members[start : start + AT_ONCE]]
            batch = worker.batch(chosen, length)
            targets = next_tokens(batch.labels)
            places, found = targets >= 0, []
            for values in (one, other):
                worker.vector.write(values)
                logits = worker.model(
                    input_ids=batch.input_ids, attention_mask=batch.attention_mask
                ).logits
                told = torch.log_softmax(logits.float(), -1)
                picked = told.gather(-1, targets.clamp_min(0)[..., None])[..., 0]
                found.append(picked[places].double())
            for index, weight in enumerate(WEIGHTS):
                first = found[0] + math.log1p(-weight)
                mixed = first if not weight else torch.logaddexp(first, found[1] + math.log(weight))
                totals[index] -= mixed.sum()
            count += int(places.sum())
    return (totals / count).tolist()


def of_a_site(worker: Worker, federated: Vector, own: OwnExamples, settings: Any) -> dict[str, Any]:
    """All figures of one hospital."""
    parts = own.training, own.validation
    held_out = [*own.reported, *own.tuning]
    alone = train_alone(worker, worker.initial, *parts, settings, seed=SEED).values
    personal = train_alone(worker, federated, *parts, settings, seed=SEED).values
    second = go_on("second", worker, federated, *parts, settings, SEED)
    losses = {
        name: (model(own.validation).eval_loss, model(held_out).eval_loss)
        for name, model in {
            "base": lambda records: score(worker, records, worker.initial),
            "federated": lambda records: score(worker, records, federated),
            "alone": lambda records: score(worker, records, alone),
            "personal": lambda records: score(worker, records, personal),
            "second": second,
        }.items()
    }
    here, there = change_of_weights(worker, alone), change_of_weights(worker, federated)
    return {
        "losses on validation and held-out notes": losses,
        "length of alone": float(here.norm()),
        "length of federated": float(there.norm()),
        "cosine": float(torch.cosine_similarity(here, there, dim=0)),
        "alone and federated": dict(
            zip(WEIGHTS, mixtures(worker, held_out, alone, federated), strict=True)
        ),
        "alone and personal": dict(
            zip(WEIGHTS, mixtures(worker, held_out, alone, personal), strict=True)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--quick", action="store_true", help="two rounds, one pass")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    overrides = [f"personal.rates=[{arguments.rate}]"]
    if arguments.quick:
        overrides += ["job.rounds=2", "personal.epochs=1"]
    variants = parse_variants(["dp-lora"], [])
    asked = Comparison.of(None, overrides, variants, 1, held_out=0.2)
    trial = asked.trial(variants[0], (), SEED)
    pool, rows = WorkerPool(1), {}
    with tempfile.TemporaryDirectory() as folder:
        result = run(trial, Path(folder), pool)
        if result.error:
            raise SystemExit(result.error)
        federated = np.load(values_path(trial, Path(folder)))
    with pool.borrow(ModelRecipe.of(trial.config)) as worker:
        for name, own in own_examples(trial.config, worker).items():
            rows[name] = of_a_site(worker, federated, own, trial.config.personal)
            print(name, json.dumps(rows[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
