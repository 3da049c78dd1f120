"""Forecast what joining is worth to the sites of a federation file, and what would change it.

Privacy:
    Reads the federation file and the table of measured runs, which are public, and nothing else: no
    record, no ledger, and no file of a site. So it costs no ε and may be shown to anybody.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.one_line import one_line
from fedpriv_forecasting.answers import (
    LEVEL,
    PAYS,
    PAYS_NOT,
    UNKNOWN,
    Answer,
    Price,
    answer,
    of_others,
    sign,
)
from fedpriv_forecasting.curve import Interval
from fedpriv_forecasting.federation import Federation, changes
from fedpriv_forecasting.likeness import kind_for, other_pace, same_model, unit_of, unlike_measured
from fedpriv_forecasting.reading import Basis, Reading
from fedpriv_forecasting.setting import Setting
from fedpriv_forecasting.table import ALONE, OWN, TWO_ALONE, WAYS, Kind, Point, Table

BEATS_TWO = f"{PAYS}, also against two own models"
BEATS_ONE = f"{PAYS} against one own model"
ONE_ALONE = f"{BEATS_ONE}, and not against two"
PERHAPS_TWO = f"{BEATS_ONE}; against two it {UNKNOWN}"
TWO_UNMEASURED = f"{BEATS_ONE}; against two, too little was measured"
# From the surest to pay to the least sure.
RANKS = (BEATS_TWO, PERHAPS_TWO, TWO_UNMEASURED, ONE_ALONE, UNKNOWN, None, LEVEL, PAYS_NOT)


@dataclass(frozen=True)
class Outlook:
    """Hold what one way is expected to bring, in loss on own records. More is better.

    Attributes:
        over_alone: gain over one own model.
        over_two: gain over the mean of two own models, where that was measured.
        outside: the figures in which the federation is outside what was measured.
        verdict: None if any figure is outside.
    """

    way: str
    over_alone: Interval
    over_two: Interval | None
    outside: tuple[str, ...]
    verdict: str | None


@dataclass(frozen=True)
class OfSite:
    """Hold the outlook of one site, for the best way."""

    name: str
    size: int
    gain: Interval
    outside: tuple[str, ...]
    verdict: str | None


@dataclass(frozen=True)
class Changed:
    """Hold the outlook of a typical site and the best way if one thing were changed.

    Attributes:
        noise_multiplier: the largest σ of a site's claim.
        more: how much more the gain is than now, as far as the curve can tell.
    """

    what: str
    noise_multiplier: float
    noise: float
    gain: Interval
    more: Interval
    outside: tuple[str, ...]


@dataclass(frozen=True)
class Forecast:
    """Hold a forecast.

    Attributes:
        kind: the kind of records in the table whose runs the forecast rests on.
        settings: number of federations that it rests on, of `kinds` kinds.
        unlike: what of the job was not measured at all.
        answers: answers to the three questions, own patients first.
        best: the way that is surest to pay. Among several, the one that gains most.
        records: units of a typical site, as the geometric mean.
        noise_multipliers: smallest and largest σ of a site's claim.
        two_own: least and greatest gain of two own models over one, in the federations that
            measured it; None where none did.
    """

    kind: str
    says: str
    model: str
    trained: int
    settings: int
    kinds: int
    unlike: tuple[str, ...]
    sites: int
    records: float
    noise_multipliers: tuple[float, float]
    noise: float
    answers: tuple[Answer, ...]
    price: Price
    ways: tuple[Outlook, ...]
    best: str
    of_sites: tuple[OfSite, ...]
    changes: tuple[Changed, ...]
    two_own: tuple[float, float] | None

    __repr__ = one_line


def forecast(
    job: JobConfig, federation: Federation, table: Table, kind: str | None = None
) -> Forecast:
    """Forecast what a federation gains.

    Args:
        federation: the public facts of `job`.
        kind: the kind of runs to rest on. The default is the kind of the job's task and model, or
            the nearest.

    Raises:
        ConfigError: the table has no runs of the kind or task, or too few for a curve.
        AccountingError: no noise gives a site's ε.
    """
    name = kind_for(job, federation, table, kind)
    described = table.kinds[name]
    basis = _basis_of(job, table, name)
    curves = {way: found for way in WAYS if (found := basis.reading(federation, way))}
    if not curves:
        lacking = f"has too few measured federations of kind {name!r} for a curve"
        takes = "it takes three that differ in sites or records, or another kind of the task"
        fix = "Measure more, or name another table with --table."
        raise ConfigError(f"{lacking}: {takes}", key="points", fix=fix)
    points = table.of(name)
    unlike = tuple(unlike_measured(job, federation, described, points))
    over_two = {way: basis.reading(federation, way, TWO_ALONE) for way in curves}
    settings, uneven = federation.settings, federation.uneven
    ways = tuple(
        _outlook(way, curve, over_two[way], settings, unlike, one_site=uneven)
        for way, curve in curves.items()
    )
    ranked = sorted(ways, key=lambda one: (RANKS.index(one.verdict), -one.over_alone.gain))
    best = ranked[0].way
    sloped = curves[best].sloped
    changed = _changed(federation, curves[best], points, unlike) if sloped else ()
    of_sites = []
    for site, size in zip(job.sites, federation.sizes, strict=True):
        here = [replace(federation.setting, records=size)]
        one = _outlook(best, curves[best], over_two[best], here, unlike, one_site=True)
        of_sites.append(OfSite(site.name, size, one.over_alone, one.outside, one.verdict))
    sigmas = federation.noise_multipliers
    own = answer(basis, federation, unlike, OWN, best, ALONE)
    return Forecast(
        kind=name,
        says=described.says,
        model=described.model,
        trained=described.trained,
        settings=max(sum(len(curve.runs) for curve in one.curves) for one in curves.values()),
        kinds=max(len(one.curves) for one in curves.values()),
        unlike=unlike,
        sites=federation.sites,
        records=federation.records,
        noise_multipliers=(min(sigmas), max(sigmas)),
        noise=federation.noise,
        answers=(own, *of_others(basis, federation, unlike)),
        price=_price(job, federation, described, unlike),
        ways=ways,
        best=best,
        of_sites=tuple(of_sites),
        changes=tuple(changed),
        two_own=_two_own(points),
    )


def _basis_of(job: JobConfig, table: Table, name: str) -> Basis:
    """Return the runs of the task: those of one kind, and those of the other kinds."""
    kind, words = table.kinds[name], None
    if not same_model(job, kind):
        words = f"model.name: {job.model.name}, but {kind.model} was measured"
    others = (one for one, other in table.kinds.items() if other.task == kind.task and one != name)
    kinds, unit = (name, *others), unit_of(job)
    own = tuple(table.of(one, unit) for one in kinds)
    records = tuple(table.of(one, "record") for one in kinds) if unit != "record" else ()
    return Basis(own, records, words)


def _price(job: JobConfig, federation: Federation, kind: Kind, unlike: tuple[str, ...]) -> Price:
    known = same_model(job, kind) and kind.settings.get("lora.r", job.lora.r) == job.lora.r
    known &= not any(words.startswith(("lora.", "model.labels", "job.method")) for words in unlike)
    megabytes = 4e-6 * kind.trained * job.job.rounds if known else None
    return Price(max(federation.epsilons), federation.epsilon_alone, megabytes)


def verdict(over_alone: Interval, over_two: Interval | None) -> str:
    """Say whether joining pays. It is said only where the whole interval agrees.

    Args:
        over_two: None where the measured runs don't tell.
    """
    if (said := sign(over_alone)) != PAYS:
        return said
    if over_two is None:
        return TWO_UNMEASURED
    if over_two.low > 0:
        return BEATS_TWO
    return ONE_ALONE if over_two.high < 0 else PERHAPS_TWO


def _two_own(points: Sequence[Point]) -> tuple[float, float] | None:
    means = [statistics.fmean(gains) for point in points if (gains := point.gains(TWO_ALONE))]
    return (min(means), max(means)) if means else None


def _outlook(
    way: str,
    curve: Reading,
    second: Reading | None,
    settings: Sequence[Setting],
    unlike: Sequence[str],
    *,
    one_site: bool,
) -> Outlook:
    """Return the outlook at the first setting. The others must not be outside, either."""
    here, over_two = settings[0], None
    over_alone = curve.predict(here, one_site=one_site)
    if second is not None and not second.outside(here):
        over_two = second.predict(here, one_site=one_site)
    outside = (*unlike, *curve.outside(*settings))
    said = None if outside else verdict(over_alone, over_two)
    return Outlook(way, over_alone, over_two, outside, said)


def _changed(
    federation: Federation, curve: Reading, points: Sequence[Point], unlike: Sequence[str]
) -> Iterable[Changed]:
    now = federation.setting
    pace = set(other_pace(federation, points))  # a change may bring the pace near again
    for what, other in changes(federation):
        there = other.setting
        still = [words for words in unlike if words not in pace]
        yield Changed(
            what=what,
            noise_multiplier=max(other.noise_multipliers),
            noise=other.noise,
            gain=curve.predict(there, one_site=other.uneven),
            more=curve.difference(now, there),
            outside=(*still, *other_pace(other, points), *curve.outside(*other.settings)),
        )
