"""Training without noise, as the upper end of what a private run could reach. Public data only."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.config.job import JobConfig
from fedpriv.data.encode import Example
from fedpriv.data.population import Population, encode_population
from fedpriv.data.store import TokenFile
from fedpriv.errors import ConfigError
from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.methods.proposal import job_recipe
from fedpriv.models.vector import Vector
from fedpriv.plain_training.public_records import mean_gradient
from fedpriv.plain_training.warm_start import warm_start
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, RandomSource
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, public
from fedpriv.privacy.mechanism.sampling import poisson_sample
from fedpriv.privacy.usual import MAX_CLIP
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.public_update.update import VectorOptimizer, learning_rate
from fedpriv.synthetic.evolution import Evolution
from fedpriv_comparison.variants import UNTRAINED
from fedpriv_server.evaluation import evaluation_records, hardest_of, scores
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_server.synthetic import evolution_of

Slope = Callable[[int], Privatised[Vector]]  # of a step, at the optimiser's values


def train(
    config: JobConfig, method: str, seed: int, pool: WorkerPool
) -> tuple[list[dict[str, Any]], float, Vector]:
    """Train without noise; return the scores by step from 0 on, the seconds, and the final values.

    The samples are those of the private run with the same seed. Every record counts the same, at
    any site: one step a round adds up over sites, pooled or not. (In a private run, a site that
    adds more noise than others counts less.)

    Args:
        method: one of `fedpriv_comparison.variants.PUBLIC`.

    Raises:
        ConfigError: the data is not marked as public.

    Privacy:
        None: what is computed from the records gets no noise at all. (``synthetic`` and
        ``warm-start`` look at no record of a site.)
    """
    if not config.job.data_is_public:
        raise ConfigError("needs public data", key="job.data_is_public", value=False)
    with pool.borrow(job_recipe(config)) as worker:
        populations, reported, tuning = load(config, worker)
        optimizer = VectorOptimizer(config.optimizer, untrained(worker))
        hardest = hardest_of(worker, reported, config.evaluation.hardest, untrained(worker))
    rows: list[dict[str, Any]] = []

    def look(number: int) -> None:
        with pool.borrow(job_recipe(config)) as worker:
            found = scores(worker, optimizer.vector, reported, tuning, hardest)
            rows.append({"round": number, **found})

    evolution = _evolution(config, optimizer, pool)
    if method == "synthetic":
        assert evolution is not None
        slope: Slope = partial(_of_the_set, config, evolution, optimizer, pool)
    else:
        slope = _of_the_records(config, optimizer, pool, populations, seed, method)
    steps = 0 if method in UNTRAINED else config.steps
    every = config.evaluation.every * config.job.sync
    if method != "warm-start":
        look(0)
    if evolution is not None and method != "synthetic" and evolution.settings.warm_start:
        with pool.borrow(job_recipe(config)) as worker:
            optimizer.start_at(warm_start(worker, evolution, optimizer.vector))
    if method == "warm-start":
        look(0)
    started = time.monotonic()
    for number in range(1, steps + 1):
        rate = learning_rate(config.optimizer, number, config.steps)
        optimizer.step(slope(number), lr=rate)
        if number % every == 0 or number == steps:
            look(number)
    return rows, round(time.monotonic() - started, 2), optimizer.vector.value


def _of_the_records(
    config: JobConfig,
    optimizer: VectorOptimizer,
    pool: WorkerPool,
    populations: Mapping[str, Population],
    seed: int,
    method: str,
) -> Slope:
    """Return what computes the mean gradient of a sample of the sites' records, clipped or not."""
    expected = config.privacy.sample_rate * sum(site.size or 0 for site in config.sites)
    bound = config.privacy.clip_norm if method == "lora-clipped" else MAX_CLIP

    def slope(number: int) -> Privatised[Vector]:
        with pool.borrow(job_recipe(config)) as worker:
            total = np.zeros(worker.vector.size)
            for name, population in populations.items():
                source = InsecureRandomness(seed, name, number - 1)
                total += raw_sum(worker, population, optimizer.vector.value, config, bound, source)
        return public((total / expected).astype(np.float32))

    return slope


def _of_the_set(
    config: JobConfig,
    evolution: Evolution,
    optimizer: VectorOptimizer,
    pool: WorkerPool,
    number: int,
) -> Privatised[Vector]:
    """Compute the mean gradient of the synthetic set as it is before the first round."""
    with pool.borrow(job_recipe(config)) as worker:
        return post_process(partial(mean_gradient, worker, evolution.examples), optimizer.vector)


def _evolution(config: JobConfig, optimizer: VectorOptimizer, pool: WorkerPool) -> Evolution | None:
    """Make the synthetic set of a job, if it has one."""
    with pool.borrow(job_recipe(config)) as worker:
        tokenizer = worker.base.tokenizer
    with tempfile.TemporaryDirectory() as cache:
        return evolution_of(config, tokenizer, pool, lambda: optimizer.vector, Path(cache))


def raw_sum(
    worker: Worker,
    population: Population,
    parameters: Vector,
    config: JobConfig,
    bound: float,
    source: RandomSource,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Compute a site's clipped sum over a Poisson sample, without noise, (P,).

    Privacy:
        None. It may be computed from public records only.
    """
    chosen = poisson_sample(len(population), config.privacy.sample_rate, source)
    units = [population.units[index] for index in chosen]
    total: np.ndarray[Any, np.dtype[np.float64]] = (
        DpLora().clipped_sum(worker, units, parameters, bound).value.cpu().numpy()
    )
    return total


def untrained(worker: Worker) -> Privatised[Vector]:
    """Return the values before any training: they come from a public base and a public seed."""
    return public(worker.initial)


def load(
    config: JobConfig, worker: Worker
) -> tuple[dict[str, Population], Sequence[Example], Sequence[Example]]:
    """Load the records of each site, those to report on, and those to tune by."""
    spec = spec_of(config)
    tokenizer = worker.base.tokenizer
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        populations = {}
        for site in config.sites:
            own = read_site(site, spec, cache)
            populations[site.name] = encode_population(
                own.training, spec, tokenizer, TokenFile(cache), rows=own.rows
            )
    return populations, *evaluation_records(config, tokenizer)
