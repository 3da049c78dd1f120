"""What the default federation reaches, with privacy and without, over seeds.

    python benchmarks/default_recipe.py --json default_recipe.json

Runs `fedpriv simulate` on the embedded federation with each learning rate and seed, and the
same training without clipping and noise on the pooled notes (every round a Poisson sample of
the same expected size). Prints held-out loss and next-token accuracy before and after.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.config import JobConfig, load_job
from fedpriv.config.load import EMBEDDED
from fedpriv.data import DataSpec, load_examples, load_population
from fedpriv.privacy.privatised import public
from fedpriv.training.loss import record_losses
from fedpriv.training.optimizer import VectorOptimizer
from fedpriv.training.worker import ModelRecipe, Worker
from fedpriv_server.evaluation import evaluate
from fedpriv_simulation.simulate import simulate


def private(config: JobConfig, seed: int) -> dict[str, float]:
    """One simulation with paired noise (the notes are public), and its last scores."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        outcome = simulate(config, Path(folder) / "run", source=EMBEDDED, insecure_seed=seed)
        return {
            "loss_before": outcome.baseline.eval_loss,
            "loss": outcome.rounds[-1]["eval_loss"],
            "accuracy": outcome.rounds[-1]["eval_accuracy"],
            "noise_multiplier": next(iter(outcome.budgets.values())).events[0].noise_multiplier,
            "seconds": time.monotonic() - started,
        }


def not_private(config: JobConfig, seed: int) -> dict[str, float]:
    """The same rounds on the pooled notes, gradients neither clipped nor noised.

    The notes are public, and so is what is computed from them.
    """
    worker = Worker(ModelRecipe(config.model, config.lora, config.job.seed, config.compute))
    spec = DataSpec.of(
        config.data.columns,
        config.model,
        max_records_per_unit=config.privacy.max_records_per_unit,
    )
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as cache:
        options: dict[str, Any] = {"cache_dir": Path(cache), "key": "benchmark"}
        units = [
            unit
            for site in config.sites
            for unit in load_population(site.data, spec, worker.base.tokenizer, **options).units
        ]
        held_out, _ = load_examples(config.evaluation.data, spec, worker.base.tokenizer, **options)
    optimizer = VectorOptimizer(config.optimizer, public(worker.vector.read()))
    expected = len(units) * config.privacy.sample_rate
    for _ in range(config.job.rounds):
        chosen = np.flatnonzero(rng.random(len(units)) < config.privacy.sample_rate)
        total = np.zeros(worker.vector.size)
        examples = [example for index in chosen for example in units[index]]
        for start in range(0, len(examples), 16):
            part = examples[start : start + 16]
            batch = worker.batch(part, config.model.max_length)
            rows = worker.gradients.rows(partial(record_losses, batch=batch), len(part))
            total += worker.gradients.natural(rows.sum(0)).double().numpy()
        gradient = public((total / expected).astype(np.float32))
        worker.vector.write(optimizer.step(gradient).value)
    scores = evaluate(worker, held_out, optimizer.vector)
    return {"loss": scores.eval_loss, "accuracy": scores.eval_accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, nargs="+", default=[3e-3, 1e-2, 2e-2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--only", choices=["private", "not-private"])
    parser.add_argument("--quick", action="store_true", help="one seed, two rounds")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seeds, arguments.lr = 1, arguments.lr[:1]
        arguments.set.append("job.rounds=2")

    rows = []
    methods = {"private": private, "not-private": not_private}
    for name, lr in itertools.product(methods, arguments.lr):
        if arguments.only not in (None, name):
            continue
        config = load_job(None, [*arguments.set, f"optimizer.lr={lr}"])
        found = [methods[name](config, seed) for seed in range(arguments.seeds)]
        row: dict[str, Any] = {"method": name, "lr": lr, "seeds": len(found)}
        for key in found[0]:
            values = [result[key] for result in found]
            row[key] = statistics.mean(values)
            row[f"{key}_deviation"] = statistics.stdev(values) if len(values) > 1 else 0.0
        rows.append(row)
        print(
            f"{name:12} lr {lr:<7g} loss {row['loss']:.3f} ± {row['loss_deviation']:.3f}"
            f"  accuracy {row['accuracy']:.3%}"
            + (f"  before {row['loss_before']:.3f}" if "loss_before" in row else ""),
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
