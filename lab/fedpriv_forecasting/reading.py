"""How a federation reads the measured curves where it is unlike all of them in one respect.

**Another base model**, or a kind of which too little was measured for a curve. The kinds that were
measured with its task differ, in records and in models. There are K of them, with gains g₁ … g_K at
a setting and variances v_k. (A kind without a curve has the mean of its runs, and their scatter.)
The answer is

    half of a 90% interval = t · √(s² (1 + 1/K) + mean of v_k)

around the mean. s² is the variance of the gains between kinds, and t is Student's with K − 1
degrees of freedom. So the new kind is taken for one more draw of what these were drawn from. With
one kind alone no scatter between kinds is known, so there is no verdict.

**Patients as units.** Where patients were measured, these runs answer. Where records were, the
noise goes by patients. Then a patient's records are worth to a site's own model between one record
and the most records that enter a step. The range is from the lowest to the highest of both.

**Uneven sites** are read at their own sizes, with the federation's noise. The measured sites are
all equal, so the range of the uneven sites' mean is that of a single site.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedpriv_forecasting.curve import (
    Curve,
    Interval,
    LeftOut,
    far_from,
    fit_curve,
    flat,
    interval,
    leave_groups_out,
    left_out_of,
    level_of,
    out_of_range,
    runs_of,
)
from fedpriv_forecasting.federation import Federation
from fedpriv_forecasting.setting import Setting
from fedpriv_forecasting.table import ALONE, OWN, Point


@dataclass(frozen=True)
class Reading:
    """Hold curves, as one federation reads them.

    Attributes:
        curves: the curve of the kind that the federation is like. Where no kind has its base model,
            the curves of all kinds of its task.
        other_model: words that say that the base model is another one; None where it is the
            measured one.
        records_per_unit: how many times the records of a measured unit a unit may have.
    """

    curves: tuple[Curve, ...]
    other_model: str | None = None
    records_per_unit: int = 1

    @property
    def widened(self) -> list[str]:
        """Return in words why ranges are wider than those of the curve."""
        found = []
        if len(self.curves) > 1:
            found.append(
                "This base model, or this kind of records, was measured too little by itself: the"
                f" brackets allow for how much the {len(self.curves)} measured kinds of the task"
                " differ from each other."
            )
        elif not self.sloped:
            found.append(
                "Too few federations were measured for how gains go with size and noise: the"
                " brackets are those of any federation within their range."
            )
        if self.records_per_unit > 1:
            found.append(
                "A unit is a patient, but records were measured: the brackets reach from patients"
                f" of one record to patients of {self.records_per_unit}."
            )
        return found

    @property
    def sloped(self) -> bool:
        """Tell whether the curves say what another size or noise would change."""
        return all(curve.terms is not flat for curve in self.curves)

    def predict(self, setting: Setting, *, one_site: bool = False) -> Interval:
        """Return a setting's gain, for the mean over sites or for one site."""
        return _hull(
            [
                self._together([curve.gain(place, one_site=one_site) for curve in self.curves])
                for place in self._places(setting)
            ]
        )

    def difference(self, setting: Setting, other: Setting) -> Interval:
        """Return how much more the gain is at the other setting."""
        pairs = zip(self._places(setting), self._places(other), strict=True)
        return _hull(
            [self._together([curve.more(*pair) for curve in self.curves]) for pair in pairs]
        )

    def outside(self, setting: Setting, *sites: Setting) -> list[str]:
        """Say in which figures a setting is outside what was measured.

        Args:
            sites: settings that must not be outside in any single figure, either.
        """
        places = self._places(setting)
        parts = list(itertools.chain(*map(self._places, sites)))
        if len(self.curves) == 1:
            (curve,) = self.curves
            found = [self.other_model] if self.other_model else []
            found += [w for place in places for w in curve.outside(place)]
            found += [w for part in parts for w in out_of_range(curve.known, part)]
        else:
            known = [setting for curve in self.curves for setting in curve.known]
            found = [w for place in (*places, *parts) for w in out_of_range(known, place)]
            found += [w for place in places for w in far_from(known, place)]
        return list(dict.fromkeys(found))

    def left_out(self) -> LeftOut | None:
        """Measure how well the reading predicts groups of runs, or whole kinds, not seen before."""
        if len(self.curves) == 1:
            return leave_groups_out(self.curves[0].runs)
        return leave_kinds_out(self.curves)

    def _places(self, setting: Setting) -> list[Setting]:
        if self.records_per_unit == 1:
            return [setting]
        return [setting, replace(setting, records=setting.records * self.records_per_unit)]

    def _together(self, found: Sequence[tuple[float, float]]) -> Interval:
        if len(found) == 1:
            return interval(*found[0], self.curves[0].freedom)
        gains, variances = zip(*found, strict=True)
        between = statistics.variance(gains) * (1 + 1 / len(gains))
        variance = between + statistics.fmean(variances)
        return interval(statistics.fmean(gains), variance, len(gains) - 1)


def _hull(found: Sequence[Interval]) -> Interval:
    gain = statistics.fmean(one.gain for one in found)
    return Interval(gain, min(one.low for one in found), max(one.high for one in found))


def leave_kinds_out(curves: Sequence[Curve]) -> LeftOut | None:
    """Predict each kind's runs from all other kinds. None with fewer than three kinds."""
    if len(curves) < 3:
        return None
    tried = []
    for curve in curves:
        others = [other for other in curves if other is not curve]
        reading = Reading(tuple(others), "another")
        usual = statistics.fmean(one.mean for other in others for one in other.runs)
        tried += [
            (reading.predict(one.setting), gain, usual) for one in curve.runs for gain in one.means
        ]
    return left_out_of(len(curves), tried)


@dataclass(frozen=True)
class Basis:
    """Hold the measured runs that the forecast of one federation rests on.

    Attributes:
        of_unit: for each kind of the federation's task, the nearest first, the runs with its unit.
        of_records: the same runs with records as units, if the federation has another unit;
            otherwise empty.
        other_model: as in `Reading`.
    """

    of_unit: tuple[Sequence[Point], ...]
    of_records: tuple[Sequence[Point], ...]
    other_model: str | None

    def points(self, question: str, way: str, baseline: str) -> list[Point]:
        """Return points that measured both ways: of the nearest kind, or of all if it has none."""
        both = [
            [point for point in points if point.gains(way, baseline, question) is not None]
            for points in (*self.of_unit, *self.of_records)
        ]
        own = [*both[0], *(both[len(self.of_unit)] if self.of_records else [])]
        return own or list(itertools.chain(*both))

    def reading(
        self, federation: Federation, way: str, baseline: str = ALONE, question: str = OWN
    ) -> Reading | None:
        """Return the curves for a question. None where too little was measured."""
        per_unit, several, spread = federation.records_per_unit, [], 1
        alone: Reading | None = None
        for number, points in enumerate(self.of_unit):
            runs = runs_of(points, way, baseline, question)
            records = self.of_records[number] if self.of_records else ()
            of_records = runs_of(records, way, baseline, question)
            if number == 0:
                for one, times in ((runs, 1), (of_records, per_unit)):
                    if alone is None and (curve := fit_curve(one)) is not None:
                        alone = Reading((curve,), self.other_model, times)
            used = runs or of_records
            spread = max(spread, per_unit if used is of_records and used else 1)
            if found := fit_curve(used) or level_of(used):
                several.append(found)
        if len(several) > 1 and (alone is None or self.other_model):
            return Reading(tuple(several), self.other_model, spread)
        return alone
