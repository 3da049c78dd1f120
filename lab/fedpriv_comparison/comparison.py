"""All runs of a comparison. Settings are chosen on some records, and results reported on others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.config.tracking import TrackingSection
from fedpriv.errors import ConfigError
from fedpriv.methods.registry import find_method
from fedpriv.names import MAX_SEED
from fedpriv.synthetic.config import SyntheticSection
from fedpriv_comparison.inputs import add_digests
from fedpriv_comparison.records import without
from fedpriv_comparison.runner import Runner
from fedpriv_comparison.trial import Result, Trial, kept, over_folds
from fedpriv_comparison.variants import BASE, PUBLIC, Settings, Variant

T = TypeVar("T")
TUNING_SHARE = 0.5  # of the evaluation records, where the file names none to choose settings by


@dataclass(frozen=True)
class Comparison:
    """Hold the runs to make, with the federation file and the records as they were at the start.

    Attributes:
        configs: the job for each variant with each of its settings.
        inputs: digests of what the jobs read.
        seeds: how many runs of each variant are reported.
        tuning_seeds: how many runs judge each of a variant's settings.
        counts: numbers of units of the new sites that begin at outside sites; empty without outside
            sites.
        left_out: for each run with one seed, the site that takes no part, or None.
    """

    variants: tuple[Variant, ...]
    configs: Mapping[tuple[Variant, Settings], JobConfig]
    inputs: Mapping[str, str]
    seeds: int
    tuning_seeds: int = 1
    counts: tuple[int, ...] = ()
    left_out: tuple[str | None, ...] = (None,)

    @classmethod
    def of(
        cls,
        source: Path | None,
        overrides: Sequence[str],
        variants: Sequence[Variant],
        seeds: int,
        tuning_seeds: int = 1,
        held_out: float | None = None,
        new_sites: Sequence[int] = (),
        leave_one_site_out: bool = False,
    ) -> Comparison:
        """Make a comparison on a federation file.

        Args:
            source: the federation file. None is the embedded one.
            overrides: KEY=VALUE texts for all runs.
            held_out: share of units to hold out at each site that has no `held_out` of its own.
            new_sites: numbers of units that a new site trains on at each outside site, besides 0.
            leave_one_site_out: let each site in turn take no part. The settings are chosen by runs
                of all sites.

        Raises:
            ConfigError: a run of the comparison is not possible, or would be charged to private
                records.
        """
        configs, inputs = {}, dict[str, str]()
        for variant, settings in ((one, settings) for one in variants for settings in one.grid):
            config = _job(source, overrides, variant, settings, held_out)
            add_digests(inputs, config)
            configs[variant, settings] = config
        counts = _counts(config, source, new_sites, leave_one_site_out)
        left_out: tuple[str | None, ...] = (None,)
        if leave_one_site_out:
            left_out = tuple(site.name for site in config.sites)
            for config in configs.values():  # refuse at once what can't be a job
                without(config, config.sites[0].name)
        return cls(tuple(variants), configs, inputs, seeds, tuning_seeds, counts, left_out)

    def config(
        self, variant: Variant, settings: Settings, seed: int, left_out: str | None = None
    ) -> JobConfig:
        """Return the job of one run."""
        config = self.configs[variant, settings]
        if left_out is not None:
            config = without(config, left_out)
        return config.model_copy(update={"job": config.job.model_copy(update={"seed": seed})})

    def trial(self, variant: Variant, settings: Settings, seed: int) -> Trial:
        """Return one run of all sites that take part, to choose settings by.

        Outside sites have no say.
        """
        config = self.config(variant, settings, seed).model_copy(update={"outside": ()})
        return Trial(variant.method, variant.place, config, seed, self.inputs, variant.personal)

    def choices(self, variant: Variant) -> list[Trial]:
        """Return the runs that choose a variant's settings, or none where there is no choice."""
        if len(variant.grid) == 1:
            return []
        # Seeds of reported runs count up from 1, these count down from 0.
        seeds = [-number % (MAX_SEED + 1) for number in range(self.tuning_seeds)]
        return [self.trial(variant, settings, seed) for settings in variant.grid for seed in seeds]

    def reported(self, variant: Variant, settings: Settings) -> list[Trial]:
        """Return the runs with the chosen settings. Runs of one seed are next to each other."""
        return [
            replace(
                self.trial(variant, settings, seed),
                config=self.config(variant, settings, seed, left_out),
                counts=self.counts,
            )
            for seed in range(1, self.seeds + 1)
            for left_out in self.left_out
        ]

    @property
    def runs(self) -> int:
        """Return how many runs the comparison takes in all."""
        reported = self.seeds * len(self.left_out)
        return sum(len(self.choices(one)) + reported for one in self.variants)

    def left(self, folder: Path) -> int:
        """Return how many runs are not kept in a folder."""
        count = 0
        for variant in self.variants:
            tuned = [kept(trial, folder) for trial in self.choices(variant)]
            settings = _best(variant, _in_parts(tuned, self.tuning_seeds))
            # All settings need the same number of runs. While settings are still to be chosen, none
            # is kept.
            trials = self.reported(variant, settings or variant.grid[0])
            chosen = settings is not None and None not in tuned
            reported = [kept(trial, folder) if chosen else None for trial in trials]
            count += [*tuned, *reported].count(None)
        return count


def _job(
    source: Path | None,
    overrides: Sequence[str],
    variant: Variant,
    settings: Settings,
    held_out: float | None,
) -> JobConfig:
    method = [] if variant.method in PUBLIC else [f"job.method={variant.method}"]
    job = load_job(source, [*overrides, *method, *variant.settings, *settings])
    if not job.job.data_is_public:
        problem = "every run would be charged to the records, and paired noise protects nobody"
        fix = "Compare on public records that are like yours."
        raise ConfigError(problem, file=source, key="job.data_is_public", value=False, fix=fix)
    # Seeded runs pay nobody. Each begins a ledger of its own, and no lasting ledger is touched.
    alone = {"ledger": None, "witness": None}
    sites = tuple(
        site.model_copy(update={**alone, "held_out": site.held_out or held_out})
        for site in job.sites
    )
    outside = tuple(
        site.model_copy(update={"held_out": site.held_out or held_out}) for site in job.outside
    )
    if variant.personal and all(site.held_out is None for site in sites):
        problem = "is missing at every site, and a site's own training is tested on its own records"
        fix = "Add it to those that are to be tested, or --held-out 0.2 for every site."
        raise ConfigError(problem, file=source, key="sites.held_out", fix=fix)
    # All records are public, so nobody pays. And the comparison is between last rounds.
    evaluation: dict[str, object] = {"sites": None, "stop_when_worse": False}
    if job.evaluation.tuning is None and not job.evaluation.tuning_share:
        evaluation["tuning_share"] = TUNING_SHARE
    changed = {
        "evaluation": job.evaluation.model_copy(update=evaluation),
        "outside": outside,
        "sites": sites,
        "synthetic": _set_of(job, source, variant.method),
        "tracking": TrackingSection(),
    }
    return job.model_copy(update=changed)


def _set_of(job: JobConfig, source: Path | None, method: str) -> SyntheticSection | None:
    """Return a file's synthetic set, for methods that use it.

    Raises:
        ConfigError: the set or its warm start is missing, and the method is nothing else.
    """
    made_up = job.synthetic
    warm = made_up is not None and made_up.warm_start > 0
    if method == "synthetic" and made_up is None:
        fix = "Describe the set to train on."
        raise ConfigError("is missing", file=source, key="synthetic", fix=fix)
    if method == "warm-start" and not warm:
        fix = "Say how many passes over the set everybody begins with."
        raise ConfigError("is missing", file=source, key="synthetic.warm_start", fix=fix)
    if method in (BASE, "synthetic"):
        return made_up if method == "synthetic" else None
    return made_up if warm or (method not in PUBLIC and find_method(method).needs_set) else None


def _counts(
    job: JobConfig, source: Path | None, new_sites: Sequence[int], in_turn: bool
) -> tuple[int, ...]:
    """Return how many units the new sites have.

    Raises:
        ConfigError: there is no outside site, or there are some and each site is to be one in turn.
    """
    if in_turn and (job.outside or len(job.sites) < 2):
        has = f"names {len(job.outside)}" if job.outside else "has one site"
        problem = f"makes each site an outside site in turn, and the file {has}"
        fix = "Leave the option out, or give a file of two sites or more and no [[outside]]."
        raise ConfigError(problem, key="--leave-one-site-out", value=True, fix=fix)
    if not (in_turn or job.outside):
        if new_sites:
            problem = "is missing, and new sites start as outside sites"
            fix = "Name outside sites, or give --leave-one-site-out."
            raise ConfigError(problem, file=source, key="outside", fix=fix)
        return ()
    return tuple(sorted({0, *new_sites}))


@dataclass(frozen=True)
class Row:
    """Hold the results of a variant.

    Attributes:
        tuned: the runs of each of its settings on the tuning seeds; empty where there is no choice.
        settings: the chosen settings; None if no settings came to a loss.
        results: the results of the chosen settings, by seed.
    """

    variant: Variant
    tuned: tuple[tuple[Settings, Sequence[Result]], ...]
    settings: Settings | None
    results: tuple[Result, ...]

    @property
    def at_the_edge(self) -> list[str]:
        """Return the keys whose chosen number is at the end of its grid.

        Nothing was tried beyond it.
        """
        edges = []
        for chosen, *tried in zip(self.settings or (), *self.variant.grid, strict=False):
            key, _, value = chosen.partition("=")
            values = {setting.partition("=")[2] for setting in tried}
            numbers = [number for number in map(_number, values) if number is not None]
            if len(numbers) > 1 and _number(value) in (min(numbers), max(numbers)):
                edges.append(key)
        return edges


def compare(comparison: Comparison, runner: Runner) -> list[Row]:
    """Run what has not been run yet, and return all results.

    Raises:
        KeyboardInterrupt: somebody stops it. All finished runs are kept.
    """
    variants = comparison.variants
    found = _by_variant(runner, {variant: comparison.choices(variant) for variant in variants})
    tuned = {one: _in_parts(found[one], comparison.tuning_seeds) for one in variants}
    chosen = {variant: _best(variant, tuned[variant]) for variant in variants}
    wanted = {
        variant: [] if settings is None else comparison.reported(variant, settings)
        for variant, settings in chosen.items()
    }
    results, folds = _by_variant(runner, wanted), len(comparison.left_out)
    return [
        Row(
            variant,
            tuple(zip(variant.grid, tuned[variant], strict=True)) if tuned[variant] else (),
            chosen[variant],
            tuple(map(over_folds, _in_parts(results[variant], folds))),
        )
        for variant in variants
    ]


def _in_parts(results: Sequence[T], count: int) -> list[Sequence[T]]:
    return [results[first : first + count] for first in range(0, len(results), count)]


def _by_variant(
    runner: Runner, trials: Mapping[Variant, Sequence[Trial]]
) -> dict[Variant, list[Result]]:
    """Run trials. Those with one seed run together, because they share one model.

    What a site's own training begins at is made beforehand, once for all trials that need it.

    Returns:
        The results of each variant, in the order of its trials.
    """
    wanted = [trial for found in trials.values() for trial in found]
    wanted.sort(key=lambda trial: trial.seed)
    runner.results([trial.before for trial in wanted if trial.personal])
    results = runner.results(wanted)
    made = {trial.key: result for trial, result in zip(wanted, results, strict=True)}
    return {variant: [made[trial.key] for trial in found] for variant, found in trials.items()}


def tuning_loss(results: Sequence[Result | None]) -> float | None:
    """Return the mean tuning loss, by which settings are chosen. None if a run failed or diverged.

    Where sites keep records apart, it is the loss at home, and every site counts the same.
    """
    losses = [None if result is None else result.tuning_loss for result in results]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return math.fsum(finite) / len(losses) if len(finite) == len(losses) else None


def _best(variant: Variant, tuned: Sequence[Sequence[Result | None]]) -> Settings | None:
    if not tuned:
        return variant.grid[0]
    pairs = zip(map(tuning_loss, tuned), variant.grid, strict=True)
    usable = [(loss, settings) for loss, settings in pairs if loss is not None]
    return min(usable)[1] if usable else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
