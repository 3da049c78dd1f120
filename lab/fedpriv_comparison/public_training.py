"""Train without noise, as the upper end of what a private run could reach. Public data only."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
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
from fedpriv.privacy.mechanism.csprng import InsecureRandomness
from fedpriv.privacy.mechanism.privatised import Privatised, post_process, public
from fedpriv.privacy.mechanism.sampling import poisson_sample
from fedpriv.privacy.usual import MAX_CLIP
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import Worker
from fedpriv.public_update.update import VectorOptimizer, learning_rate
from fedpriv_comparison.variants import UNTRAINED
from fedpriv_server.evaluation import evaluation_records, scores
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_server.synthetic import evolution_of


def train(
    config: JobConfig, method: str, seed: int, pool: WorkerPool
) -> tuple[list[dict[str, Any]], float, Vector]:
    """Train without noise. Return the scores by step from 0 on, the seconds, and the final values.

    The samples are those of the private run with the same seed. Every record counts the same, at
    any site: one step of a round adds up over the sites, pooled or not. (In a private run, a site
    that adds more noise than others counts less.)

    Args:
        method: one of `fedpriv_comparison.variants.PUBLIC`.

    Raises:
        ConfigError: the data is not marked as public.

    Privacy:
        None: what is computed from the records gets no noise at all. (``synthetic`` and
        ``warm-start`` read no record of a site.)
    """
    if not config.job.data_is_public:
        raise ConfigError("needs public data", key="job.data_is_public", value=False)
    with pool.borrow(job_recipe(config)) as worker:
        populations, reported, tuning = load(config, worker)
        untrained = public(worker.initial)  # from a public base and a public seed
        optimizer = VectorOptimizer(config.optimizer, untrained)
        tokenizer = worker.base.tokenizer
    with tempfile.TemporaryDirectory() as cache:  # the set's generator may borrow the worker
        evolution = evolution_of(config, tokenizer, pool, lambda: optimizer.vector, Path(cache))
    rows: list[dict[str, Any]] = []
    steps = 0 if method in UNTRAINED else config.steps
    every = config.evaluation.every * config.job.sync
    bound = config.privacy.clip_norm if method == "lora-clipped" else MAX_CLIP
    expected = config.privacy.sample_rate * sum(site.size or 0 for site in config.sites)
    with pool.borrow(job_recipe(config)) as worker:

        def look(number: int) -> None:
            found = scores(worker, optimizer.vector, reported, tuning)
            rows.append({"round": number, **found})

        def of_records(number: int) -> Privatised[Vector]:
            total = np.zeros(worker.vector.size)
            for name, population in populations.items():
                source = InsecureRandomness(seed, name, number - 1)
                chosen = poisson_sample(len(population), config.privacy.sample_rate, source)
                units, values = [population.units[i] for i in chosen], optimizer.vector.value
                total += DpLora().clipped_sum(worker, units, values, bound).value.cpu().numpy()
            return public((total / expected).astype(np.float32))

        if method != "warm-start":
            look(0)
        if evolution is not None and method != "synthetic" and evolution.settings.warm_start:
            optimizer.start_at(warm_start(worker, evolution, optimizer.vector))
        if method == "warm-start":
            look(0)
        started = time.monotonic()
        for number in range(1, steps + 1):
            if method == "synthetic":  # the gradient of the set as it is before the first round
                assert evolution is not None
                of_set = partial(mean_gradient, worker, evolution.examples)
                slope = post_process(of_set, optimizer.vector)
            else:
                slope = of_records(number)
            optimizer.step(slope, lr=learning_rate(config.optimizer, number, config.steps))
            if number % every == 0 or number == steps:
                look(number)
    return rows, round(time.monotonic() - started, 2), optimizer.vector.value


def load(
    config: JobConfig, worker: Worker
) -> tuple[dict[str, Population], Sequence[Example], Sequence[Example]]:
    """Load the records of each site, the records to report on, and those to tune by."""
    spec, tokenizer, populations = spec_of(config), worker.base.tokenizer, {}
    with tempfile.TemporaryDirectory() as folder:
        for site in config.sites:
            own, tokens = read_site(site, spec, Path(folder)), TokenFile(Path(folder))
            populations[site.name] = encode_population(
                own.training, spec, tokenizer, tokens, rows=own.rows
            )
    return populations, *evaluation_records(config, tokenizer)
