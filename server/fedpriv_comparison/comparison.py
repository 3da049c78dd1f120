"""All runs of a comparison. Settings are chosen on one part of the records, told of on another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_comparison.runner import Runner
from fedpriv_comparison.trial import Result, Trial
from fedpriv_comparison.variants import PUBLIC, Settings, Variant

TUNING_SEED = 0  # the seeds that are reported are 1, 2, …
TUNING_SHARE = 0.5  # of the evaluation records, where the file names none to choose settings by


@dataclass(frozen=True)
class Comparison:
    """What shall be run.

    Attributes:
        source: the federation file; None is the embedded one.
        overrides: KEY=VALUE for all runs.
        seeds: how many runs of each variant are reported.
    """

    source: Path | None
    overrides: tuple[str, ...]
    variants: tuple[Variant, ...]
    seeds: int

    def __post_init__(self) -> None:
        """Raises:
        ConfigError: a run of it can't be, or would be charged to private records.
        """
        for variant in self.variants:
            for settings in variant.grid:
                if not self.config(variant, settings, 1).job.data_is_public:
                    raise ConfigError(
                        "every run would be charged to the records, and paired noise protects"
                        " nobody",
                        file=self.source,
                        key="job.data_is_public",
                        value=False,
                        fix="Compare on public records that are like yours.",
                    )

    def config(self, variant: Variant, settings: Settings, seed: int) -> JobConfig:
        """The job of one run."""
        method = [] if variant.method in PUBLIC else [f"job.method={variant.method}"]
        own = [*method, *variant.settings, *settings, f"job.seed={seed}"]
        job = load_job(self.source, [*self.overrides, *own])
        if job.evaluation.tuning is not None or job.evaluation.tuning_share:
            return job
        evaluation = job.evaluation.model_copy(update={"tuning_share": TUNING_SHARE})
        return job.model_copy(update={"evaluation": evaluation})

    def trial(self, variant: Variant, settings: Settings, seed: int) -> Trial:
        """One run."""
        return Trial(variant.method, variant.place, self.config(variant, settings, seed), seed)

    def choices(self, variant: Variant) -> list[tuple[Settings, Trial]]:
        """The runs by which a variant's settings are chosen: none where there is no choice."""
        if len(variant.grid) == 1:
            return []
        return [(item, self.trial(variant, item, TUNING_SEED)) for item in variant.grid]

    @property
    def runs(self) -> int:
        """How many runs it takes in all."""
        chosen = sum(len(item.grid) for item in self.variants if len(item.grid) > 1)
        return chosen + self.seeds * len(self.variants)


@dataclass(frozen=True)
class Row:
    """What a variant came to.

    Attributes:
        tuned: each of its settings with its loss on the tuning records, None where it failed.
        settings: the chosen ones; None if every choice failed.
        results: of the chosen settings, by seed.
    """

    variant: Variant
    tuned: tuple[tuple[Settings, float | None], ...]
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
    tried = [
        (variant, settings, trial)
        for variant in comparison.variants
        for settings, trial in comparison.choices(variant)
    ]
    tuned: dict[Variant, list[tuple[Settings, float | None]]] = {
        variant: [] for variant in comparison.variants
    }
    found = runner.results([trial for _, _, trial in tried])
    for (variant, settings, _), result in zip(tried, found, strict=True):
        tuned[variant].append((settings, result.last("tuning_loss")))
    chosen = {variant: _best(variant, tuned[variant]) for variant in comparison.variants}
    wanted = [
        (variant, comparison.trial(variant, settings, seed))
        for seed in range(1, comparison.seeds + 1)  # the outer loop: a seed has its own model
        for variant, settings in chosen.items()
        if settings is not None
    ]
    results: dict[Variant, list[Result]] = {variant: [] for variant in comparison.variants}
    found = runner.results([trial for _, trial in wanted])
    for (variant, _), result in zip(wanted, found, strict=True):
        results[variant].append(result)
    return [
        Row(variant, tuple(tuned[variant]), chosen[variant], tuple(results[variant]))
        for variant in comparison.variants
    ]


def _best(variant: Variant, tuned: Sequence[tuple[Settings, float | None]]) -> Settings | None:
    if not tuned:
        return variant.grid[0]
    usable = [
        (loss, settings) for settings, loss in tuned if loss is not None and math.isfinite(loss)
    ]
    return min(usable)[1] if usable else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
