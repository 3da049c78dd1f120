"""All runs of a comparison. Settings are chosen on one part of the records, told of on another."""

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
from fedpriv_comparison.inputs import Inputs
from fedpriv_comparison.records import without
from fedpriv_comparison.runner import Runner
from fedpriv_comparison.trial import Result, Trial, kept, over_folds
from fedpriv_comparison.variants import PUBLIC, Settings, Variant

T = TypeVar("T")
TUNING_SHARE = 0.5  # of the evaluation records, where the file names none to choose settings by


@dataclass(frozen=True)
class Comparison:
    """What shall be run, as the federation file and the records were when it was made.

    Attributes:
        configs: the job of each variant with each of its settings.
        inputs: digests of what the jobs read.
        seeds: how many runs of each variant are reported.
        tuning_seeds: how many runs each of its settings is judged by.
        counts: units of the new sites that begin at outside ones; none where there is no such site.
        left_out: the site that takes no part, of each run with one seed.
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
        new_sites: Sequence[int] | None = None,
        leave_one_site_out: bool = False,
    ) -> Comparison:
        """Make a comparison on a federation file.

        Args:
            source: None is the embedded one.
            overrides: KEY=VALUE for all runs.
            held_out: share of the units of each site that has no `held_out` of its own.
            new_sites: numbers of units that a new site trains on at each outside site, beside none.
            leave_one_site_out: each site in turn takes no part. Runs of all choose the settings.

        Raises:
            ConfigError: a run of it is not possible, or would be charged to private records.
        """
        configs = {}
        inputs = Inputs()
        for variant in variants:
            for settings in variant.grid:
                config = _job(source, overrides, variant, settings, held_out)
                inputs.add(config)
                configs[variant, settings] = config
        counts = _counts(config, source, new_sites, leave_one_site_out)
        left_out: tuple[str | None, ...] = (None,)
        if leave_one_site_out:
            left_out = tuple(site.name for site in config.sites)
            for config in configs.values():  # what can't be a job is refused at once
                without(config, config.sites[0].name)
        return cls(tuple(variants), configs, inputs.digests, seeds, tuning_seeds, counts, left_out)

    def config(
        self, variant: Variant, settings: Settings, seed: int, left_out: str | None = None
    ) -> JobConfig:
        """Return the job of one run."""
        config = self.configs[variant, settings]
        if left_out is not None:
            config = without(config, left_out)
        return config.model_copy(update={"job": config.job.model_copy(update={"seed": seed})})

    def trial(self, variant: Variant, settings: Settings, seed: int) -> Trial:
        """Return one run of all that take part, to choose by: no outside site has a say."""
        config = self.config(variant, settings, seed).model_copy(update={"outside": ()})
        return Trial(variant.method, variant.place, config, seed, self.inputs, variant.personal)

    def choices(self, variant: Variant) -> list[Trial]:
        """Return the runs that choose a variant's settings; none where there is no choice."""
        if len(variant.grid) == 1:
            return []
        # Those that are reported count up from 1, these down from 0.
        seeds = [-number % (MAX_SEED + 1) for number in range(self.tuning_seeds)]
        return [self.trial(variant, settings, seed) for settings in variant.grid for seed in seeds]

    def by_settings(self, results: Sequence[T]) -> list[Sequence[T]]:
        """Group the results of `choices` by their settings."""
        count = self.tuning_seeds
        return [results[i : i + count] for i in range(0, len(results), count)]

    def reported(self, variant: Variant, settings: Settings) -> list[Trial]:
        """Return the runs with the chosen settings; those of one seed are next to each other."""
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
        """How many runs it takes in all."""
        return sum(len(self.choices(one)) + self._reported for one in self.variants)

    @property
    def _reported(self) -> int:
        return self.seeds * len(self.left_out)

    def left(self, folder: Path) -> dict[Variant, int]:
        """Return how many runs of each variant are not kept in a folder."""
        counts = {}
        for variant in self.variants:
            tuned = [kept(trial, folder) for trial in self.choices(variant)]
            missing = sum(result is None for result in tuned)
            settings = _best(variant, list(map(tuning_loss, self.by_settings(tuned))))
            if missing or settings is None:
                counts[variant] = missing + self._reported
            else:
                trials = self.reported(variant, settings)
                counts[variant] = sum(kept(trial, folder) is None for trial in trials)
        return counts


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
        raise ConfigError(
            "every run would be charged to the records, and paired noise protects nobody",
            file=source,
            key="job.data_is_public",
            value=False,
            fix="Compare on public records that are like yours.",
        )
    job = _keeping_apart(job, held_out)
    if variant.personal:
        _check_held_out(job, source)
    if variant.method == "synthetic" and job.synthetic is None:
        raise ConfigError(
            "is missing", file=source, key="synthetic", fix="Describe the set to train on."
        )
    if variant.method == "warm-start" and not _is_warm(job):
        fix = "Say how many passes over the set everybody begins with."
        raise ConfigError("is missing", file=source, key="synthetic.warm_start", fix=fix)
    job = job.model_copy(update={"synthetic": _set_of(job, variant)})
    evaluation = job.evaluation.model_copy(update={"sites": None})  # all is public: nobody pays
    if evaluation.tuning is None and not evaluation.tuning_share:
        evaluation = evaluation.model_copy(update={"tuning_share": TUNING_SHARE})
    # Seeded runs pay nobody: each begins a ledger of its own, and no lasting one is touched.
    sites = [site.model_copy(update={"ledger": None, "witness": None}) for site in job.sites]
    changed = {"evaluation": evaluation, "sites": tuple(sites), "tracking": TrackingSection()}
    return job.model_copy(update=changed)


def _keeping_apart(job: JobConfig, share: float | None) -> JobConfig:
    """Return the job in which each site without held-out records of its own keeps a share apart."""
    changed = {
        table: tuple(
            site if site.held_out else site.model_copy(update={"held_out": share})
            for site in getattr(job, table)
        )
        for table in ("sites", "outside")
    }
    return job.model_copy(update=changed)


def _counts(
    job: JobConfig, source: Path | None, new_sites: Sequence[int] | None, in_turn: bool
) -> tuple[int, ...]:
    """Return how many units the new sites have.

    Raises:
        ConfigError: there is no outside site; or there are some, and each site is to be one.
    """
    if in_turn and (job.outside or len(job.sites) < 2):
        has = f"names {len(job.outside)}" if job.outside else "has one site"
        raise ConfigError(
            f"has each site be an outside site in turn, and the file {has}",
            key="--leave-one-site-out",
            value=True,
            fix="Leave the option out, or give a file of two sites or more and no [[outside]].",
        )
    if not (in_turn or job.outside):
        if new_sites:
            raise ConfigError(
                "is missing, and a new site begins at one",
                file=source,
                key="outside",
                fix="Name outside sites, or give --leave-one-site-out.",
            )
        return ()
    return tuple(sorted({0, *(new_sites or ())}))


def _check_held_out(job: JobConfig, source: Path | None) -> None:
    """Refuse to let sites train on by themselves where there is nothing to test it on.

    Sites that keep nothing apart only take part.

    Raises:
        ConfigError: no site keeps records apart.
    """
    if all(site.held_out is None for site in job.sites):
        raise ConfigError(
            "is missing at every site, and a site's own training is tested on its own records",
            file=source,
            key="sites.held_out",
            fix="Add it to those that are to be tested, or --held-out 0.2 for every site.",
        )


def _set_of(job: JobConfig, variant: Variant) -> SyntheticSection | None:
    """Return a file's synthetic set, for variants that use it."""
    warm = _is_warm(job)
    match variant.method:
        case "base":
            used = False
        case "synthetic":
            used = True
        case "lora" | "lora-clipped" | "warm-start":
            used = warm
        case method:
            used = warm or find_method(method).needs_set
    return job.synthetic if used else None


def _is_warm(job: JobConfig) -> bool:
    return job.synthetic is not None and job.synthetic.warm_start > 0


@dataclass(frozen=True)
class Row:
    """What a variant came to.

    Attributes:
        tuned: the runs of each of its settings on the tuning seeds; none where there is no choice.
        settings: the chosen ones; None if no choice came to a loss.
        results: of the chosen settings, by seed.
    """

    variant: Variant
    tuned: tuple[tuple[Settings, Sequence[Result]], ...]
    settings: Settings | None
    results: tuple[Result, ...]

    @property
    def at_the_edge(self) -> list[str]:
        """Chosen settings beyond which the grid did not look, though there are numbers there."""
        edges = []
        for index, setting in enumerate(self.settings or ()):
            key, _, value = setting.partition("=")
            tried = {settings[index].partition("=")[2] for settings in self.variant.grid}
            numbers = [number for number in map(_number, tried) if number is not None]
            chosen = _number(value)
            if len(numbers) > 1 and chosen in (min(numbers), max(numbers)):
                edges.append(key)
        return edges


def compare(comparison: Comparison, runner: Runner) -> list[Row]:
    """Run what has not been run yet, and give all results.

    Raises:
        KeyboardInterrupt: with all finished runs kept.
    """
    variants = comparison.variants
    found = _by_variant(runner, {variant: comparison.choices(variant) for variant in variants})
    tuned = {variant: comparison.by_settings(found[variant]) for variant in variants}
    chosen = {
        variant: _best(variant, list(map(tuning_loss, tuned[variant]))) for variant in variants
    }
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
            tuple(
                over_folds(results[variant][first : first + folds])
                for first in range(0, len(results[variant]), folds)
            ),
        )
        for variant in variants
    ]


def _by_variant(
    runner: Runner, trials: Mapping[Variant, Sequence[Trial]]
) -> dict[Variant, list[Result]]:
    """Run trials, those with one seed together: they have one model.

    What a site trains on from is made beforehand, once for all that do.

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
    """Return the mean tuning loss, by which settings are chosen; None if a run failed or diverged.

    Where sites keep records apart, it is the loss at home; every site counts the same.
    """
    losses = [None if result is None else result.tuning_loss for result in results]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return math.fsum(finite) / len(losses) if len(finite) == len(losses) else None


def _best(variant: Variant, losses: Sequence[float | None]) -> Settings | None:
    if not losses:
        return variant.grid[0]
    pairs = zip(losses, variant.grid, strict=True)
    usable = [(loss, settings) for loss, settings in pairs if loss is not None]
    return min(usable)[1] if usable else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
