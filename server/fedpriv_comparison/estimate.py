"""How long a comparison will take, before it begins: one private step and one evaluation, timed."""

from __future__ import annotations

import time
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.training.dp_lora import DpLora
from fedpriv.training.worker import ModelRecipe, Worker
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.public_training import load, untrained
from fedpriv_server.evaluation import evaluate

UNITS = 32  # that are timed


def estimate(comparison: Comparison, folder: Path) -> str:
    """A sentence for whoever waits."""
    kept = len(list((folder / "runs").glob("*.json")))
    left = max(0, comparison.runs - kept)
    if not left:
        return f"All {comparison.runs} runs are there already."
    variant = comparison.variants[-1]
    run = seconds_of_a_run(comparison.config(variant, variant.grid[0], 1))
    return f"{left} runs of {comparison.runs} are left, about {_duration(left * run)}."


def seconds_of_a_run(config: JobConfig) -> float:
    """Of one run with these settings on this machine, roughly."""
    started = time.monotonic()
    worker = Worker(ModelRecipe(config.model, config.lora, config.job.seed, config.compute))
    _ = worker.gradients
    populations, reported, tuning = load(config, worker)
    fixed = time.monotonic() - started
    units = [unit for population in populations.values() for unit in population.units]
    part = units[:UNITS]
    started = time.monotonic()
    DpLora().clipped_sum(worker, part, worker.initial, config.privacy.clip_norm)
    step = (time.monotonic() - started) / max(1, len(part))
    shown = [*reported, *tuning][:UNITS]
    started = time.monotonic()
    evaluate(worker, shown, untrained(worker))
    look = (time.monotonic() - started) / max(1, len(shown))
    rounds = config.job.rounds
    looks = -(-rounds // config.evaluation.every) + 1
    batch = config.privacy.sample_rate * len(units)
    return fixed + rounds * batch * step + looks * look * (len(reported) + len(tuning))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
