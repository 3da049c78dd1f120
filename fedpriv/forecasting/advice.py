"""What joining is expected to be worth to the sites of a federation file, and what would change it.

Privacy:
    Reads the federation file and the table of measured runs, which are public, and nothing else:
    no record, no ledger, no file of a site. So it costs no ε and may be shown to anybody.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.forecasting.curve import (
    Curve,
    Interval,
    Setting,
    fit_curve,
    runs_of,
)
from fedpriv.forecasting.federation import Federation, changes
from fedpriv.forecasting.likeness import (
    kind_for,
    other_pace,
    point_setting,
    typical,
    unlike_measured,
)
from fedpriv.forecasting.table import TWO_ALONE, WAYS, Point, Table
from fedpriv.forecasting.validation import LeftOut, leave_groups_out

PAYS, PAYS_NOT, UNKNOWN = "is expected to pay", "is expected not to pay", "can't be told"


@dataclass(frozen=True)
class Outlook:
    """What one way is expected to bring, in loss on own records; more is better.

    Attributes:
        over_alone: against one model of one's own.
        over_two: against the mean of two, where that was measured.
        outside: in which figures it is outside what was measured.
        verdict: None outside of it.
    """

    way: str
    over_alone: Interval
    over_two: Interval | None
    outside: tuple[str, ...]
    verdict: str | None


@dataclass(frozen=True)
class OfSite:
    """The same of one site, for the best way."""

    name: str
    size: int
    gain: Interval
    outside: tuple[str, ...]
    verdict: str | None


@dataclass(frozen=True)
class Changed:
    """The same of a typical site and the best way, if one thing were otherwise.

    Attributes:
        noise_multiplier: the largest σ of a site's claim.
        more: than now, as far as the curve can tell.
    """

    what: str
    noise_multiplier: float
    noise: float
    gain: Interval
    more: Interval
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Near:
    """The measured federation that is nearest, and the share of its sites that gained."""

    sites: int
    records: int
    epsilon: float
    trust: str
    gained: float


@dataclass(frozen=True)
class Forecast:
    """A forecast.

    Attributes:
        kind: of records in the table, whose runs it rests on.
        settings: how many federations these were.
        unlike: what of the job was not measured at all.
        best: the way with the highest expected gain.
        records: of a typical site, the geometric mean.
        noise_multipliers: smallest and largest σ of a site's claim.
        two_own: least and most that two own models gained over one, of the federations where
            that was measured; None where it was at none.
        left_out: of each way, how well its curve predicts what it has not seen.
    """

    kind: str
    says: str
    trained: int
    settings: int
    unlike: tuple[str, ...]
    sites: int
    records: float
    noise_multipliers: tuple[float, float]
    noise: float
    ways: tuple[Outlook, ...]
    best: str
    near: Near
    of_sites: tuple[OfSite, ...]
    changes: tuple[Changed, ...]
    warm_start_measured: bool
    two_own: tuple[float, float] | None
    left_out: dict[str, LeftOut | None]


def forecast(
    job: JobConfig, federation: Federation, table: Table, kind: str | None = None
) -> Forecast:
    """What is expected of a federation.

    Args:
        federation: the public facts of `job`.
        kind: whose runs to rest on; by default those of the job's task and model, or the nearest.

    Raises:
        ConfigError: the table has no runs of the kind or task, or too few for a curve.
        AccountingError: no noise makes a site's ε.
    """
    name = kind_for(job, federation, table, kind)
    points, described = table.of(name), table.kinds[name]
    curves = {way: curve for way in WAYS if (curve := fit_curve(runs_of(points, way)))}
    if not curves:
        raise ConfigError(
            f"has too few measured federations of kind {name!r} for a curve: it takes five that"
            " differ in sites or records, and in noise",
            key="points",
            fix="Measure more, or name another table with --table.",
        )
    unlike = tuple(unlike_measured(job, federation, described, points, chosen=kind is not None))
    ways = tuple(_outlook(way, curve, federation, points, unlike) for way, curve in curves.items())
    best = max(ways, key=lambda one: one.over_alone.gain).way
    sigmas = federation.noise_multipliers
    return Forecast(
        kind=name,
        says=described.says,
        trained=described.trained,
        settings=max(len(curve.runs) for curve in curves.values()),
        unlike=unlike,
        sites=federation.sites,
        records=federation.records,
        noise_multipliers=(min(sigmas), max(sigmas)),
        noise=federation.noise,
        ways=ways,
        best=best,
        near=_near(federation, points, best),
        of_sites=tuple(_of_sites(job, federation, curves[best], unlike)),
        changes=tuple(_changed(federation, curves[best], points)),
        warm_start_measured=curves[best].warm,
        two_own=_two_own(points),
        left_out={way: leave_groups_out(runs_of(points, way)) for way in curves},
    )


def verdict(over_alone: Interval, over_two: Interval | None = None) -> str:
    """In words, whether joining pays: only where the whole interval says the same."""
    if over_alone.high < 0:
        return PAYS_NOT
    if over_alone.low <= 0:
        return UNKNOWN
    if over_two is None:
        return PAYS
    if over_two.low > 0:
        return f"{PAYS}, also against two models of one's own"
    if over_two.high < 0:
        return f"{PAYS} against one model of one's own, and not against two"
    return f"{PAYS} against one model of one's own; against two it {UNKNOWN}"


def _two_own(points: Sequence[Point]) -> tuple[float, float] | None:
    means = [statistics.fmean(gains) for point in points if (gains := point.gains(TWO_ALONE))]
    return (min(means), max(means)) if means else None


def _outlook(
    way: str,
    curve: Curve,
    federation: Federation,
    points: Sequence[Point],
    unlike: Sequence[str],
) -> Outlook:
    here = typical(federation)
    over_alone, second = curve.predict(here), fit_curve(runs_of(points, way, TWO_ALONE))
    outside = (*unlike, *curve.outside(here))
    over_two = None
    if second is not None and not second.outside(here):
        over_two = second.predict(here)
    said = None if outside else verdict(over_alone, over_two)
    return Outlook(way, over_alone, over_two, outside, said)


def _of_sites(
    job: JobConfig, federation: Federation, curve: Curve, unlike: Sequence[str]
) -> list[OfSite]:
    found = []
    for site, size in zip(job.sites, federation.sizes, strict=True):
        here = Setting(federation.sites, size, federation.noise, federation.warm_start)
        gain, outside = curve.predict(here, one_site=True), (*unlike, *curve.outside(here))
        said = None if outside else verdict(gain)
        found.append(OfSite(site.name, size, gain, outside, said))
    return found


def _changed(federation: Federation, curve: Curve, points: Sequence[Point]) -> list[Changed]:
    """Leaves a warm start out where its coefficient is not known."""
    now, found = typical(federation), []
    for what, other in changes(federation):
        there = typical(other)
        if there.warm_start and not now.warm_start and not curve.warm:
            continue
        changed = Changed(
            what=what,
            noise_multiplier=max(other.noise_multipliers),
            noise=other.noise,
            gain=curve.predict(there),
            more=curve.difference(now, there),
            outside=(*other_pace(other, points), *curve.outside(there)),
        )
        found.append(changed)
    return found


def _near(federation: Federation, points: Sequence[Point], way: str) -> Near:
    """Of several with the same figures, all seeds together."""
    here = typical(federation)
    measured = [point for point in points if point.gains(way) is not None]
    nearest = min(measured, key=lambda point: here.distance(point_setting(point)))
    same = [
        point
        for point in measured
        if point_setting(point) == point_setting(nearest) and point.epsilon == nearest.epsilon
    ]
    gained = [gain > 0 for point in same for gain in point.gains(way) or ()]
    share = float(np.mean(gained))
    return Near(nearest.sites, nearest.records, nearest.epsilon, nearest.trust, share)


def by_verdict(sites: Sequence[OfSite]) -> Counter[str | None]:
    """How many sites have each verdict; None of those outside."""
    return Counter(site.verdict for site in sites)
