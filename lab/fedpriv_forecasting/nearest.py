"""The measured federation that is nearest to another one, and what was seen there."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedpriv_forecasting.federation import Federation
from fedpriv_forecasting.table import ALONE, TWO_ALONE, Point


@dataclass(frozen=True)
class Near:
    """A measured federation, and what a way to use its adapter was worth there.

    Attributes:
        way: to use the adapter.
        alone: mean loss of a model of one's own there.
        gain: mean over the scored sites and seeds.
        over_two: the same against two own models; None where these were not measured.
        scored, seeds: how many.
        gained: share of scored sites and seeds that gained at all.
    """

    way: str
    sites: int
    records: int
    epsilon: float
    trust: str
    warm_start: bool
    alone: float
    gain: float
    over_two: float | None
    scored: int
    seeds: int
    gained: float


def nearest(federation: Federation, points: Sequence[Point], ways: Iterable[str]) -> Near:
    """The measured federation that is nearest, among those that begin alike, if there are any.

    Of the same figures, all seeds together.

    Args:
        ways: of which the one that gained most there is told.
    """
    here, wanted = federation.setting, tuple(ways)
    known = [point for point in points if any(point.gains(way) for way in wanted)]
    alike = [point for point in known if point.warm_start == here.warm_start] or known
    found = min(alike, key=lambda point: here.distance(point.setting))
    same = [
        point
        for point in alike
        if point.setting == found.setting and point.epsilon == found.epsilon
    ]
    gains = {way: _gains(same, way, ALONE) for way in wanted}
    way = max((way for way in wanted if gains[way]), key=lambda way: statistics.fmean(gains[way]))
    over_two = _gains(same, way, TWO_ALONE)
    return Near(
        way=way,
        sites=found.sites,
        records=found.records,
        epsilon=found.epsilon,
        trust=found.trust,
        warm_start=found.warm_start,
        alone=statistics.fmean(loss for point in same for loss in point.own[ALONE]),
        gain=statistics.fmean(gains[way]),
        over_two=statistics.fmean(over_two) if over_two else None,
        scored=found.scored,
        seeds=len(same),
        gained=statistics.fmean(gain > 0 for gain in gains[way]),
    )


def _gains(points: Sequence[Point], way: str, baseline: str) -> list[float]:
    return [gain for point in points for gain in point.gains(way, baseline) or ()]
