"""Why joining does or does not pay: a site's own model beside the federation's.

    fedpriv compare --methods lora-alone,dp-lora --held-out 0.2 --set personal.rates=[3e-3] --out o
    python benchmarks/own_models.py --set personal.rates=[3e-3] --runs o/runs --json own-models.json

For each site of a federation, the embedded one or FILE: how long the change of weights is that it
trains by itself without noise (alone) and that the federation trains (federated), and their
cosine; and its loss on its held-out records under the mean of two models' probabilities, by the
weight of the second. That is the federation's, or another of the site's own, trained alone with
another seed. "chosen" has the weight that is best on the site's validation records. Runs that
`fedpriv compare` has kept are not run again. Public records only; samples and noise are drawn from
a seed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedpriv.config.load import HOSPITALS
from fedpriv.data.encode import Example
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.personal.together import own_and_federated, together
from fedpriv.plain_training.scores import score
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.held_out_scores import OwnExamples, own_examples
from fedpriv_comparison.trial import Trial, run, values_path
from fedpriv_comparison.variants import parse_variants

WEIGHTS = (0.05, 0.1, 0.2, 0.3, 0.5)  # of the other model
SEEDS = (1, 2)  # the first that `fedpriv compare` reports
Losses = dict[str, float]


@torch.inference_mode()
def change_of_weights(worker: Worker, values: Vector) -> Tensor:
    """All that an adapter adds to the frozen weights, in one row."""
    worker.vector.write(values)
    layers = [m for m in worker.model.modules() if hasattr(m, "get_delta_weight")]
    return torch.cat([layer.get_delta_weight("default").flatten() for layer in layers])


def mixtures(worker: Worker, held_out: Sequence[Example], one: Vector, other: Vector) -> Losses:
    """The loss under the mean of two models' probabilities, by the weight of the other."""
    return {
        "0.0": score(worker, held_out, one).eval_loss,
        **{
            str(weight): together(worker, own_and_federated([one], other, weight))(
                held_out
            ).eval_loss
            for weight in WEIGHTS
        },
    }


def of_a_site(
    worker: Worker, own: OwnExamples, alone: Vector, again: Vector, federated: Vector
) -> dict[str, Any]:
    """All figures of one site."""
    held_out = [*own.reported, *own.tuning]
    here, there = change_of_weights(worker, alone), change_of_weights(worker, federated)
    return {
        "length of alone": float(here.norm()),
        "length of federated": float(there.norm()),
        "cosine": float(torch.cosine_similarity(here, there, dim=0)),
        "federated": score(worker, held_out, federated).eval_loss,
        "alone and federated": mixtures(worker, held_out, alone, federated),
        "alone and alone again": mixtures(worker, held_out, alone, again),
    }


def trained(trial: Trial, folder: Path, pool: WorkerPool) -> Any:
    """The values of a trial, see `values_path`; of a kept one without training."""
    result = run(trial, folder, pool)
    if result.error:
        raise SystemExit(result.error)
    return np.load(values_path(trial, folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=HOSPITALS)
    parser.add_argument("--runs", type=Path, help="folder `runs` of a comparison; by default none")
    parser.add_argument(
        "--held-out", type=float, default=0.2, help="share, where a site names none"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--quick", action="store_true", help="two rounds, one pass")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    quick = ["job.rounds=2", "personal.epochs=1"] if arguments.quick else []
    variants = parse_variants(["dp-lora"], [])
    overrides = [*arguments.set, *quick]
    asked = Comparison.of(
        arguments.file, overrides, variants, len(SEEDS), held_out=arguments.held_out
    )
    first, second = (asked.trial(variants[0], (), seed) for seed in SEEDS)
    pool, rows = WorkerPool(1), {}
    with tempfile.TemporaryDirectory() as kept:
        folder = arguments.runs or Path(kept)
        federated = trained(first, folder, pool)
        by_itself = (replace(one, method="base", personal=True) for one in (first, second))
        alone, again = (trained(one, folder, pool) for one in by_itself)
    with pool.borrow(job_recipe(first.config)) as worker:
        for index, (name, own) in enumerate(own_examples(first.config, worker).items()):
            rows[name] = of_a_site(worker, own, alone[index], again[index], federated)
            print(name, json.dumps(rows[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
