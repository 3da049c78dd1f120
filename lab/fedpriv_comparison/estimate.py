"""How long a comparison will take, before it begins: a part of a step and of a look, timed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from fedpriv.config.job import JobConfig
from fedpriv.config.personal import MANY
from fedpriv.errors import FedprivError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.methods.proposal import job_recipe
from fedpriv.names import OwnKind
from fedpriv.private_training.pool import make_worker
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.public_training import load, untrained
from fedpriv_comparison.runner import threads_of
from fedpriv_comparison.variants import UNTRAINED
from fedpriv_server.evaluation import evaluate

ENOUGH = 2.0  # seconds
FULL = 64  # records of which most batches are full, though each has records of one length only
STOPPED = 50  # passes at all rates, after which what is left out mostly ends the choice


def estimate(comparison: Comparison, folder: Path, parallel: int = 1) -> str:
    """A sentence for whoever waits: by a step of one variant that trains."""
    left = comparison.left(folder)
    runs, count = comparison.runs, sum(left.values())
    if not count:
        return f"All {runs} runs are there already."
    threads = torch.get_num_threads()
    torch.set_num_threads(threads_of(parallel))
    try:
        # A pooled or local run takes the steps of all sites, too.
        variant = next(
            (v for v in reversed(left) if left[v] and (v.method not in UNTRAINED or v.way)), None
        )
        seconds = 0.0
        if variant is not None:
            kind: OwnKind = "alone" if variant.method in UNTRAINED else "personal"
            one, home = seconds_of_a_run(comparison.config(variant, variant.grid[0], 1), kind)
            trained = sum(n for variant, n in left.items() if variant.method not in UNTRAINED)
            further = sum(n for variant, n in left.items() if variant.way)
            seconds = (one * trained + home * further) / parallel
    except FedprivError as error:
        return f"{count} of {runs} runs to do; how long it takes can't be told: {error}"
    finally:
        torch.set_num_threads(threads)
    return f"{count} of {runs} runs to do, about {_duration(seconds)}."


def seconds_of_a_run(config: JobConfig, kind: OwnKind = "personal") -> tuple[float, float]:
    """Of one run with these settings on this machine, roughly; and of all sites' own training.

    Args:
        kind: of own training.
    """
    started = time.monotonic()
    worker = make_worker(job_recipe(config))
    populations, reported, tuning = load(config, worker)
    fixed = time.monotonic() - started
    units = [unit for population in populations.values() for unit in population.units]
    shown = [*reported, *tuning]

    def step(part: Sequence[Any]) -> None:
        DpLora().clipped_sum(worker, part, worker.initial, config.privacy.clip_norm)

    def look(part: Sequence[Any]) -> None:
        evaluate(worker, part, untrained(worker))

    batch = config.privacy.sample_rate * len(units)
    looks = -(-config.job.rounds // config.evaluation.every) + 1
    trained, seen = config.steps * batch, looks * len(shown)
    each = _each(step, units)
    home = _passes(config, kind, len(units) // len(populations)) * len(units) * each
    return fixed + trained * each + seen * _each(look, shown), home


def _passes(config: JobConfig, kind: OwnKind, units: int) -> float:
    """Of a site's own training over its records, so many, with those that choose."""
    personal, most = config.personal, config.personal.beginning(kind).epochs
    if not personal.validation:
        return most
    times = 1 if units >= MANY else round(1 / personal.validation)
    tried = min(STOPPED, len(personal.rates) * most)
    return tried * times * (1 - personal.validation) + min(tried, most)


def _each(work: Callable[[Sequence[Any]], None], items: Sequence[Any]) -> float:
    """Seconds for one item: of a growing part of them, until it took long enough to tell.

    A part is timed when it is done again. The first time much is done once and for all, such as to
    find, for each padded length, the batches that round alike: it took 26 times as long.
    """
    drawn = random.Random(0).sample(items, len(items))
    count, taken = 0, 0.0
    while taken < ENOUGH and count < len(items):
        count = min(max(4 * count, FULL), len(items))
        work(drawn[:count])
        started = time.monotonic()
        work(drawn[:count])
        taken = time.monotonic() - started
    return taken / count


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
