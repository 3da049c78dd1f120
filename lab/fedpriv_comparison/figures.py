"""The figures of a comparison: means, deviations and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from scipy.special import stdtrit

from fedpriv.report.figures import TIE
from fedpriv_comparison.comparison import Comparison, Row, tuning_loss
from fedpriv_comparison.trial import SCORES, Result
from fedpriv_comparison.variants import ALONE, BASE

LEVEL = 0.95  # at each end of an interval of 90%, as in a forecast


@dataclass(frozen=True)
class Spread:
    """Hold a mean over seeds, and the sample deviation, which is None for one seed."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return mean and deviation of the values, or None without values."""
        if not values:
            return None
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation)


@dataclass(frozen=True)
class AtHome:
    """Hold what the sites' models are worth on each site's own held-out records.

    Attributes:
        loss, accuracy, auc: mean over the sites. Each site counts the same.
        difference: the losses minus those of each site alone, at equal seeds.
        worst: the loss at the site where it is highest.
        pays: share of the sites that have a lower loss than they have alone and than the base
            model, whichever is lower; mean over the seeds. Less than `TIE` is no difference.
        verdict: whether it pays on the mean over the sites, by an interval of 90%. None for a
            single site.
        by_site: the loss at each site.
    """

    loss: Spread
    accuracy: Spread
    auc: Spread | None
    difference: Spread | None
    worst: Spread
    pays: Spread | None
    verdict: str | None
    by_site: dict[str, Spread]


@dataclass(frozen=True)
class Outside:
    """Hold what models are worth to sites that took no part, by the units of a new site there.

    Attributes:
        loss: mean over the outside sites. Each site counts the same.
        by_site: the loss at each outside site.
        against: the baseline's name.
        gain: how much lower the baseline's loss is at equal seeds, as the mean over the sites.
            Empty for the baseline itself.
        verdict: what the gain's interval says, see `verdict`.
    """

    loss: dict[str, Spread]
    by_site: dict[str, dict[str, Spread]]
    against: str
    gain: dict[str, float]
    verdict: dict[str, str | None]


@dataclass(frozen=True)
class Figures:
    """Hold a row of the table.

    Attributes:
        runs: how many of the wanted runs the means are over.
        scores: scores after the last round.
        difference: this variant's losses minus the baseline's, at equal seeds.
        home: figures on the sites' own records; None where sites keep none apart.
        outside: figures at sites that took no part; None where there are none, and for own models.
        failed: errors of runs, with those of the tuning runs.
        tuned: loss on the tuning records of each setting; None where a run failed or diverged.
        worse: whether its runs ended with a higher loss than they began with, on average.
    """

    name: str
    settings: tuple[str, ...]
    at_the_edge: list[str]
    runs: int
    rounds: int
    delta: float
    scores: dict[str, Spread]
    difference: Spread | None
    home: AtHome | None
    outside: Outside | None
    epsilon: float | None
    noise_multiplier: float | None
    bytes_up: int
    seconds: float
    failed: list[str]
    tuned: list[tuple[tuple[str, ...], float | None]]
    worse: bool


def figures(comparison: Comparison, rows: Sequence[Row], baseline: str) -> list[Figures]:
    """Return the figures of every variant, compared with the variant named `baseline`."""
    (base,) = (row for row in rows if row.variant.name == baseline)
    alone = next((row for row in rows if row.variant.name == ALONE), None)
    untrained = next((row.results for row in rows if row.variant.name == BASE), ())
    return [_figures(comparison, row, base, alone, untrained) for row in rows]


def _figures(
    comparison: Comparison, row: Row, base: Row, alone: Row | None, untrained: Sequence[Result]
) -> Figures:
    good = [result for result in row.results if not result.error]
    last = {key: [score for one in good if (score := one.last(key)) is not None] for key in SCORES}
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(row.results, base.results, strict=False)
        if not mine.error and not theirs.error
    ]
    differences = [
        mine.rounds[-1]["eval_loss"] - theirs.rounds[-1]["eval_loss"] for mine, theirs in pairs
    ]
    failed = [result.error for result in row.results if result.error]
    failed += [
        f"{', '.join(settings)}: {result.error}"
        for settings, results in row.tuned
        for result in results
        if result.error
    ]
    if row.settings is None and not failed:
        failed = ["every setting of the grid diverged"]
    config = comparison.config(row.variant, row.settings or row.variant.grid[0], 1)
    return Figures(
        name=row.variant.name,
        settings=row.settings or (),
        at_the_edge=row.at_the_edge,
        runs=len(good),
        rounds=config.steps,
        delta=config.privacy.delta,
        scores={key: _spread(values) for key, values in last.items() if values},
        difference=None if row is base else Spread.of(differences),
        home=held_out_gains(
            row.results, () if alone is None or row is alone else alone.results, untrained
        ),
        outside=outside_gains(pairs, row.results, base.variant.name),
        epsilon=max((r.epsilon for r in good if r.epsilon is not None), default=None),
        noise_multiplier=next((r.noise_multiplier for r in good), None),
        bytes_up=round(statistics.fmean(r.bytes_up for r in good)) if good else 0,
        seconds=statistics.fmean(r.seconds for r in good) if good else 0.0,
        failed=failed,
        tuned=[(settings, tuning_loss(results)) for settings, results in row.tuned],
        worse=ended_worse(good),
    )


def held_out_gains(
    results: Sequence[Result], alone: Sequence[Result], base: Sequence[Result] = ()
) -> AtHome | None:
    """Return the scores on the sites' own records, compared with each site alone.

    Args:
        results, alone, base: results by seed. `alone` is empty if there is nothing to compare with.
            `base` holds the base model's results, because nobody would train alone where that makes
            the model worse.
    """
    good = [result for result in results if not result.error and result.home]
    if not good:
        return None

    def over_sites(key: str) -> list[float]:
        sites = [list(result.home.values()) for result in good]
        return [
            statistics.fmean(s[key] for s in each) for each in sites if all(key in s for s in each)
        ]

    differences, gains = [], []
    for mine, theirs, untrained in zip_longest(results, alone, base):
        if mine is None or theirs is None or mine.error or theirs.error:
            continue
        own, usual = _losses(mine), _losses(theirs)
        differences.append(statistics.fmean(own[name] - usual[name] for name in own))
        least = usual if untrained is None else usual | _losses(untrained)
        gains.append({name: min(usual[name], least[name]) - own[name] for name in own})
    by_site = {name: [_losses(result)[name] for result in good] for name in good[0].home}
    pays = [statistics.fmean(gain > TIE for gain in at.values()) for at in gains]
    return AtHome(
        loss=_spread(over_sites("eval_loss")),
        accuracy=_spread(over_sites("eval_accuracy")),
        auc=Spread.of(over_sites("eval_auc")),
        difference=Spread.of(differences),
        worst=_spread([max(_losses(result).values()) for result in good]),
        pays=Spread.of(pays),
        verdict=verdict(
            [statistics.fmean(at) for at in zip(*map(dict.values, gains), strict=True)]
        ),
        by_site={name: _spread(losses) for name, losses in by_site.items()},
    )


def _losses(result: Result) -> dict[str, float]:
    """Return the loss on each site's own records. A failed run has none."""
    return {name: scores["eval_loss"] for name, scores in result.home.items()}


def outside_gains(
    pairs: Sequence[tuple[Result, Result]], results: Sequence[Result], against: str
) -> Outside | None:
    """Return the scores at outside sites, compared with the baseline's.

    Args:
        pairs: results of equal seeds, this row's and the baseline's.
        results: results of this row.
    """
    good = [result.outside for result in results if not result.error and result.outside]
    if not good:
        return None
    found = Outside({}, {}, against, {}, {})
    for count in dict.fromkeys(count for at in good for scores in at.values() for count in scores):
        sites = {name: [at[name][count]["eval_loss"] for at in good] for name in good[0]}
        means = [statistics.fmean(at) for at in zip(*sites.values(), strict=True)]
        found.by_site[count] = {name: _spread(losses) for name, losses in sites.items()}
        found.loss[count] = _spread(means)
        gains = [
            statistics.fmean(
                mine.outside[name][count]["eval_loss"] - theirs.outside[name][count]["eval_loss"]
                for mine, theirs in pairs
            )
            for name in sites
            if pairs and all(theirs.outside and mine is not theirs for mine, theirs in pairs)
        ]
        if gains:
            found.gain[count], found.verdict[count] = statistics.fmean(gains), verdict(gains)
    return found


def _spread(values: Sequence[float]) -> Spread:
    spread = Spread.of(values)
    assert spread is not None
    return spread


def outside_in_words(rows: Sequence[Figures]) -> list[str]:
    """Write a sentence for each number of own units: how far the baseline is from each row."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row.outside is not None:
            for count, gain in row.outside.gain.items():
                way = "lower" if gain > 0 else "higher"
                sure = {"a tie": ", not sure", None: ", one site"}.get(row.outside.verdict[count])
                said = f"{abs(gain):.3f} {way} than that of {row.name}{sure or ''}"
                found.setdefault(count, []).append(said)
    against = next((row.outside.against for row in rows if row.outside is not None), "")
    own = {count: "" if count == "0" else f" after {count} own units" for count in found}
    return [
        f"At outside sites, the loss of {against}{own[count]} is {'; '.join(said)}."
        for count, said in found.items()
    ]


def verdict(gains: Sequence[float]) -> str | None:
    """Say by Student's t whether the sites' mean gain is above 0. None for a single gain."""
    if len(gains) < 2:
        return None
    mean, deviation = statistics.fmean(gains), statistics.stdev(gains)
    half = float(stdtrit(len(gains) - 1, LEVEL)) * deviation / math.sqrt(len(gains))
    if mean - half > TIE:
        return "pays"
    return "does not pay" if mean + half < -TIE else "a tie"


def ended_worse(results: Sequence[Result]) -> bool:
    """Tell whether the loss rose from the first round to the last, on average by over a tie."""
    risen = [result.rounds[-1]["eval_loss"] - result.rounds[0]["eval_loss"] for result in results]
    return bool(risen) and not statistics.fmean(risen) <= TIE
