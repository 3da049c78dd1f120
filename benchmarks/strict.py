"""What strict numerics cost, and how fast noise is drawn.

    python benchmarks/strict.py --json strict.json

Runs private steps of the embedded model on one site's notes, default and strict in turn and on
the same samples, and prints the median of their ratios; and draws noise as a release does, beside
numpy's, which is no noise to rely on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.config import load_job
from fedpriv.data import DataSpec, load_population
from fedpriv.methods.dp_lora.site import DpLora
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Reservation, Terms
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, SystemCsprng
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.privacy.mechanism.grid import deviation, sum_step
from fedpriv.privacy.mechanism.noise import rounded_gaussian
from fedpriv.training.pool import make_worker
from fedpriv.training.private_step import private_step
from fedpriv.training.worker import ModelRecipe

NOISE_MULTIPLIER = 1.0


def measure_steps(repeats: int) -> dict[str, float]:
    """Seconds of a step in either numerics, and strict over default on the same sample."""
    config = load_job(None)
    privacy = config.privacy
    worker = make_worker(ModelRecipe(config.model, config.lora, config.job.seed, config.compute))
    spec = DataSpec.of(
        config.data.columns, config.model, max_records_per_unit=privacy.max_records_per_unit
    )
    with tempfile.TemporaryDirectory() as cache:
        population = load_population(
            config.sites[0].data,
            spec,
            worker.base.tokenizer,
            cache_dir=Path(cache),
            key="benchmark",
        )
    default = Plan(
        job="benchmark",
        method="dp-lora",
        sample_rate=privacy.sample_rate,
        noise_multiplier=NOISE_MULTIPLIER,
        clip_norm=privacy.clip_norm,
        steps=repeats,
        proposal="sha256:" + "0" * 64,
    )
    plans = [default, dataclasses.replace(default, numerics="strict")]
    parameters = worker.vector.read()

    def step(plan: Plan, index: int) -> float:
        paid = reserve(plan, index)
        csprng = InsecureRandomness(0, index)  # of public notes: both take the same sample
        return seconds(
            lambda: private_step(
                PlanExecution(plan, worker.vector.size),
                DpLora(),
                worker,
                population,
                parameters,
                paid,
                csprng,
            )
        )

    for plan in plans:
        step(plan, 0)
    times = []
    for index in range(1, repeats + 1):
        order = plans if index % 2 else plans[::-1]
        times.append({plan.numerics: step(plan, index) for plan in order})
    return {
        "parameters": worker.vector.size,
        "units": privacy.sample_rate * len(population),
        "default_step": statistics.median(row["default"] for row in times),
        "strict_step": statistics.median(row["strict"] for row in times),
        "ratio": statistics.median(row["strict"] / row["default"] for row in times),
    }


def reserve(plan: Plan, index: int) -> Reservation:
    """A slot of a throw-away ledger of public notes."""
    terms = Terms("0" * 32, 2, "record", 1, 0.4, 1e6, simulated=True, private=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.create(Path(folder) / "ledger.db", terms) as ledger,
    ):
        ledger.commit(plan)
        paid = ledger.reserve(plan.job, index % plan.steps, "sha256:" + "0" * 64)
    assert isinstance(paid, Reservation)
    return paid


def measure_noise(values: int, repeats: int) -> dict[str, float]:
    """Values a second, rounded exactly and by numpy's generator."""
    spread = deviation(NOISE_MULTIPLIER, 1.0, sum_step(1.0, values))
    csprng, generator = SystemCsprng(), np.random.default_rng()
    samplers: dict[str, Callable[[], Any]] = {
        "rounded_gaussian": lambda: rounded_gaussian(values, spread, csprng),
        "numpy": lambda: generator.standard_normal(values),
    }
    for sampler in samplers.values():
        sampler()
    times = [{name: seconds(draw) for name, draw in samplers.items()} for _ in range(repeats)]
    return {name: values / statistics.median(row[name] for row in times) for name in samplers}


def seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--values", type=int, default=10**7)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.repeats, arguments.values = 2, 10**5
    steps = measure_steps(arguments.repeats)
    rates = measure_noise(arguments.values, min(arguments.repeats, 5))
    print(
        f"step: default {steps['default_step']:.3f} s  strict {steps['strict_step']:.3f} s"
        f"  ratio {steps['ratio']:.2f}"
    )
    print("noise: " + "  ".join(f"{name} {rate / 1e6:.1f} M/s" for name, rate in rates.items()))
    if arguments.json:
        found = {**steps, "values_per_second": rates}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
