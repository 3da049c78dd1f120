"""Models to attack: trained by a whole simulated federation, as claimed or with less noise."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedpriv.auditing.result import WorldName
from fedpriv.config.job import JobConfig
from fedpriv.config.sites import SiteSection
from fedpriv.config.tracking import TrackingSection
from fedpriv.models.vector import Vector
from fedpriv.private_training.pool import WorkerPool
from fedpriv_audit.canaries import Canary, canaries
from fedpriv_audit.made_up_site import AuditPlan
from fedpriv_audit.membership import Coins
from fedpriv_audit.single_run import AS_CLAIMED, HALF
from fedpriv_audit.units import AuditedUnit, Row, can_hold_canaries, canary_rows, write_site
from fedpriv_comparison.public_training import train
from fedpriv_comparison.trial import trained_values
from fedpriv_server.own_records import spec_of
from fedpriv_simulation.simulate import simulate

TIMES = (1, 1, 1, 1, 8, 8, 8, 8)  # how often each canary is inserted
EVALUATED = 8  # records that evaluate the models of an audit; nobody looks at the result
SMALLEST = 2  # the least size that a site declares, in units


@dataclass(frozen=True)
class TrainingSize:
    """Hold how much is trained.

    Attributes:
        records: units of all sites together. Each model is trained on half of them, by coins.
        models: models in each world. Each is a reference for the others.
        rounds: rounds of a job, or None for those of the federation.
        candidates: secrets among which a canary's own is looked for.
        longer: how many times as many steps run without noise, so that a model learns records by
            heart.
        worlds: name and share of the noise of each world.
    """

    records: int = 160
    models: int = 4
    rounds: int | None = None
    candidates: int = 64
    longer: int = 3
    seed: int = 0
    worlds: tuple[tuple[WorldName, float], ...] = (AS_CLAIMED, HALF, ("no-noise", 0.0))


@dataclass(frozen=True)
class Trained:
    """Hold the models of one world.

    Attributes:
        values: (P,) trained values of each model.
        inside: (K, N) which unit each model was trained on.
        canaries: canaries of each model.
        epsilon: the largest ε that a site committed to for a model; None without noise.
    """

    values: list[Vector]
    inside: Coins
    canaries: list[list[Canary]]
    epsilon: float | None


def for_audit(config: JobConfig, size: TrainingSize) -> JobConfig:
    """Return the federation's job as the audit runs it: with its own rounds, hardly evaluated."""
    rounds = size.rounds or config.job.rounds
    little = {"every": rounds, "limit": EVALUATED, "sites": None}
    evaluation = config.evaluation.model_copy(update=little)
    job = config.job.model_copy(update={"name": "audit", "rounds": rounds, "engine": "inline"})
    changed = {"job": job, "evaluation": evaluation, "tracking": TrackingSection()}
    return config.model_copy(update=changed)


def with_noise(config: JobConfig, share: float) -> JobConfig:
    """Return the same job with a share of the noise, set by the ε that leads to it at each site."""
    if share == 1:
        return config
    privacy = config.privacy

    def weaker(epsilon: float) -> dict[str, float]:
        plan = AuditPlan(epsilon, privacy.delta, privacy.sample_rate, config.slots)
        return {"epsilon": plan.epsilon_with(share)}

    sites = tuple(
        site
        if site.epsilon is None
        else site.model_copy(update=weaker(min(site.epsilon, privacy.epsilon)))
        for site in config.sites
    )
    changed = privacy.model_copy(update=weaker(privacy.epsilon))
    return config.model_copy(update={"privacy": changed, "sites": sites})


def trained_on_halves(
    config: JobConfig,
    units: list[AuditedUnit],
    size: TrainingSize,
    world: str,
    share: float,
    folder: Path,
    pool: WorkerPool,
) -> Trained:
    """Train models, each on half of the units by independent coins and on canaries of its own.

    Args:
        config: from `for_audit`, with public records.
        world: the world's name. Each world has coins and canaries of its own.
        share: share of the noise. With 0, training runs longer and has no clipping and no noise.
        folder: folder for files of records and for runs. They are removed.

    Raises:
        FedprivError: as for `simulate`.
    """
    assert config.job.data_is_public
    number = sum(world.encode())
    inside = np.random.default_rng([size.seed, number]).random((size.models, len(units))) < 0.5
    values, planted, epsilons = [], [], []
    sizes, may_hold = _half_sizes(config, units), can_hold_canaries(spec_of(config))
    for model in range(size.models):
        work = folder / f"{world}-{model}"
        work.mkdir(parents=True)
        seed = f"{world} {size.seed} {model}"
        secrets = canaries(size.candidates, TIMES, seed) if may_hold else []
        members = [unit for unit, there in zip(units, inside[model], strict=True) if there]
        job = _with_records(config, _by_site(config, members, secrets), work, sizes)
        if share:
            outcome = simulate(with_noise(job, share), work / "run", source=work, pool=pool)
            epsilons.append(max(one.epsilon_committed for one in outcome.budgets.values()))
            values.append(trained_values(outcome.run))
        else:
            values.append(_without_noise(job, size, model, pool))
        planted.append(secrets)
        shutil.rmtree(work)
    return Trained(values, inside, planted, max(epsilons, default=None))


def _by_site(
    config: JobConfig, members: list[AuditedUnit], secrets: list[Canary]
) -> dict[str, list[Row]]:
    """Return the rows of each site, which include its share of the canaries."""
    found: dict[str, list[Row]] = {site.name: [] for site in config.sites}
    for unit in members:
        found[unit.site] += unit.rows
    spec = spec_of(config)
    inserted = (row for canary in secrets for row in canary_rows(spec, canary))
    for name, row in zip(itertools.cycle(list(found)), inserted, strict=False):
        found[name].append(row)
    return found


def _half_sizes(config: JobConfig, units: list[AuditedUnit]) -> dict[str, int]:
    """Return the size that each site declares. It is not counted from the half that a coin made."""
    canaries = -(-sum(TIMES) // len(config.sites)) if can_hold_canaries(spec_of(config)) else 0
    return {
        site.name: max(SMALLEST, sum(unit.site == site.name for unit in units) // 2 + canaries)
        for site in config.sites
    }


def _with_records(
    config: JobConfig,
    rows: dict[str, list[Row]],
    folder: Path,
    sizes: Mapping[str, int],
) -> JobConfig:
    """Return the job with these public records at the sites, in files in a folder.

    No ledger that outlives the run pays.

    Args:
        sizes: sizes that the sites declare.
    """
    sites = list[SiteSection]()
    for site in config.sites:
        path = folder / f"{site.name}.jsonl"
        write_site(path, rows[site.name])
        gone = dict.fromkeys(("held_out", "held_out_size", "ledger", "witness"))
        sites.append(site.model_copy(update={**gone, "data": path, "size": sizes[site.name]}))
    return config.model_copy(update={"sites": tuple(sites)})


def _without_noise(config: JobConfig, size: TrainingSize, seed: int, pool: WorkerPool) -> Vector:
    """Return the values after the same kind of steps, but more, without clipping and noise."""
    rounds = size.longer * config.job.rounds
    evaluation = config.evaluation.model_copy(update={"every": rounds})
    job = config.job.model_copy(update={"rounds": rounds})
    longer = config.model_copy(update={"job": job, "evaluation": evaluation})
    return train(longer, "lora", seed, pool)[2]
