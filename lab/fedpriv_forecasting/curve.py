"""The curve through measured runs, and how far off it may be.

For one kind of records and one way to use a federation's adapter, with m records at a site and
noise to signal s of the federation, the curve is

    gain = β₀ + β₁ · log₂ m + β₂ · log₂ s + β₃ · log₂ m · log₂ s

fitted by least squares over settings. The gain of a setting is the mean over its seeds and its
scored sites. Where there are too few runs for the last term, it is left out. With three or four
groups only β₀ is left, so that all differences count as scatter. Gain is the loss of the baseline
minus that of the way. Runs with the same number of sites and of records share sites, models and
luck, so they are a *group*. The scatter around the curve is measured by how far the curve misses a
group that was left out of it:

    v = mean of (gain − predicted without the group)² / (1 + its leverage)

    half of a 90% interval = t · √(v (1 + x (XᵀX)⁻¹ xᵀ) + w)

Here t is Student's at 95%, with as many degrees of freedom as there are groups minus coefficients.
w is the variance between seeds that the mean over seeds hides; for one site it also includes the
variance between the sites of a run. How far a difference of two gains may be off follows from how
the coefficients move as each group is left out (the jackknife over groups).

Why the product: `benchmarks/forecast.py` compares curves by how far they miss groups that were left
out. On measured notes, for the ways that are worth most, the curve with the product misses by at
most two thirds of what the other misses by. For these ways it also misses by no more on sentences
and made-up tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from fedpriv_forecasting.setting import Setting
from fedpriv_forecasting.table import ALONE, OWN, Point

LEVEL = 0.95  # of each end of an interval of 90%
LEAST_FREEDOM = 2  # how many more groups than coefficients there have to be
Array = NDArray[np.float64]


Terms = Callable[[Setting], list[float]]  # the terms that the coefficients are multiplied by


def plain(setting: Setting) -> list[float]:
    """Return the terms without the product."""
    return [1.0, math.log2(setting.records), math.log2(setting.noise)]


def flat(setting: Setting) -> list[float]:
    """Return the one term of a mean."""
    return [1.0]


def joint(setting: Setting) -> list[float]:
    """Return the terms of the curve in this module's docstring."""
    return [*plain(setting), math.log2(setting.records) * math.log2(setting.noise)]


@dataclass(frozen=True)
class Runs:
    """Hold a setting's runs.

    Attributes:
        gains: for each seed, the gains of its sites.
    """

    setting: Setting
    gains: tuple[tuple[float, ...], ...]

    @property
    def means(self) -> list[float]:
        """Return the mean gain of each seed."""
        return [float(np.mean(sites)) for sites in self.gains]

    @property
    def mean(self) -> float:
        """Return the mean gain over seeds and sites."""
        return float(np.mean(self.means))


@dataclass(frozen=True)
class Interval:
    """Hold a gain, and the two bounds between which it is in 90% of cases."""

    gain: float
    low: float
    high: float


def interval(gain: float, variance: float, freedom: int) -> Interval:
    """Return the interval of a gain, by Student's t."""
    half = float(stdtrit(freedom, LEVEL)) * math.sqrt(max(0.0, variance))
    return Interval(gain, gain - half, gain + half)


def runs_of(
    points: Sequence[Point], way: str, baseline: str = ALONE, question: str = OWN
) -> list[Runs]:
    """Return the runs that measured both the way and the baseline, by setting."""
    found: dict[tuple[Setting, Hashable], list[tuple[float, ...]]] = {}
    for point in points:
        gains = point.gains(way, baseline, question)
        if gains is None:
            continue
        terms = (point.epsilon, point.delta, point.trust, point.sample_rate, point.rounds)
        found.setdefault((point.setting, terms), []).append(gains)
    return [Runs(setting, tuple(gains)) for (setting, _), gains in found.items()]


@dataclass(frozen=True)
class Curve:
    """Hold a fitted curve, as `fit_curve` makes it.

    Attributes:
        runs: the runs that the curve is fitted to.
        inverse: (XᵀX)⁻¹.
        moves: covariance of the coefficients, by the jackknife over groups.
        scatter: v, the variance of settings around the curve.
        between_seeds, between_sites: variances of gains within a setting, and within a run.
        freedom: degrees of freedom of the scatter.
    """

    runs: tuple[Runs, ...]
    coefficients: Array
    inverse: Array
    moves: Array
    scatter: float
    between_seeds: float
    between_sites: float
    freedom: int
    terms: Terms

    def row(self, setting: Setting) -> Array:
        """Return x, which the coefficients are multiplied by."""
        return np.array(self.terms(setting))

    def leverage(self, setting: Setting) -> float:
        """Return x (XᵀX)⁻¹ xᵀ: how far a setting is from the middle of what was measured."""
        row = self.row(setting)
        return float(row @ self.inverse @ row)

    def gain(self, setting: Setting, *, one_site: bool = False) -> tuple[float, float]:
        """Return a setting's gain and its variance, for the mean over sites or for one site."""
        variance = self.scatter * (1 + self.leverage(setting)) + self.between_seeds
        variance += self.between_sites if one_site else 0.0
        return float(self.row(setting) @ self.coefficients), variance

    def predict(self, setting: Setting, *, one_site: bool = False) -> Interval:
        """Return a setting's gain with its bounds."""
        return interval(*self.gain(setting, one_site=one_site), self.freedom)

    def more(self, setting: Setting, other: Setting) -> tuple[float, float]:
        """Return how much more the gain is at the other setting, and the curve's variance alone.

        The variance leaves out the scatter of single federations.
        """
        step = self.row(other) - self.row(setting)
        return float(step @ self.coefficients), float(step @ self.moves @ step)

    def outside(self, setting: Setting) -> list[str]:
        """Say in which figures a setting is outside what was measured. The list may be empty."""
        found = out_of_range(self.known, setting) or far_from(self.known, setting)
        longest = max(self.leverage(one.setting) for one in self.runs)
        if not found and self.leverage(setting) > longest * (1 + 1e-9):
            return ["records and noise together: each was measured, but not both at the same time"]
        return found

    @property
    def known(self) -> list[Setting]:
        """Return the settings of the runs."""
        return [one.setting for one in self.runs]


def out_of_range(known: Sequence[Setting], setting: Setting) -> list[str]:
    """Say in which figures, each by itself, a setting is outside the known settings."""
    return [
        f"{name}: {value:.3g}, but {measured_range(values)}"
        for name, value, values in (
            ("sites", setting.sites, [one.sites for one in known]),
            ("records at a site", setting.records, [one.records for one in known]),
            ("noise for each trained value", setting.noise, [one.noise for one in known]),
        )
        if not min(values) * (1 - 1e-9) <= value <= max(values) * (1 + 1e-9)
    ]


def far_from(known: Sequence[Setting], setting: Setting) -> list[str]:
    """Say so if none of the known settings is near in records and noise together."""
    nearest = min(setting.distance(one) for one in known)
    # The longest way from a measured setting to its nearest neighbour elsewhere.
    ways = [[way for other in known if (way := one.distance(other)) > 0] for one in known]
    if nearest <= max(1.0, *(min(to_others, default=0.0) for to_others in ways)):
        return []
    return [
        f"records and noise together: the nearest federation that was measured differs by a factor"
        f" of {2**nearest:.2g}"
    ]


def measured_range(values: Sequence[float]) -> str:
    """Say from where to where the measured values go."""
    least, most = min(values), max(values)
    if least == most:
        return f"{least:.3g} was measured"
    return f"{least:.3g} to {most:.3g} were measured"


def fit_curve(runs: Sequence[Runs], terms: Terms | None = None) -> Curve | None:
    """Fit the curve through runs. None if there are too few runs for an uncertainty.

    Args:
        terms: the curve's terms. By default they are those above, or fewer where the runs can't
            tell them.
    """
    fits = (_fit(runs, one) for one in ((joint, plain, flat) if terms is None else (terms,)))
    return next((curve for curve in fits if curve is not None), None)


def level_of(runs: Sequence[Runs]) -> Curve | None:
    """Return the mean of groups that may be too few for a curve. None without any group.

    Its variance is the variance between groups, or 0 for a single group. It is for use beside other
    kinds.
    """
    if not runs:
        return None
    y = np.array([one.mean for one in runs])
    groups = {one.setting.group for one in runs}
    return Curve(
        runs=tuple(runs),
        coefficients=np.array([y.mean()]),
        inverse=np.array([[1 / len(groups)]]),
        moves=np.zeros((1, 1)),
        scatter=float(y.var(ddof=1)) if len(groups) > 1 else 0.0,
        between_seeds=_hidden(runs),
        between_sites=_pooled([sites for one in runs for sites in one.gains]),
        freedom=len(groups) - 1,
        terms=flat,
    )


def _fit(runs: Sequence[Runs], terms: Terms) -> Curve | None:
    groups = [one.setting.group for one in runs]
    x = np.array([terms(one.setting) for one in runs])
    y = np.array([one.mean for one in runs])
    freedom = len(set(groups)) - (x.shape[1] if runs else 0)
    if freedom < LEAST_FREEDOM:
        return None
    without, squares = [], []
    for group in dict.fromkeys(groups):
        kept = np.array([other != group for other in groups])
        solved = _solve(x[kept], y[kept])
        if solved is None:
            return None
        coefficients, inverse = solved
        without.append(coefficients)
        missed, lever = y[~kept] - x[~kept] @ coefficients, x[~kept] @ inverse
        squares.extend(missed**2 / (1 + np.sum(lever * x[~kept], axis=1)))
    solved = _solve(x, y)
    if solved is None:
        return None
    return Curve(
        runs=tuple(runs),
        coefficients=solved[0],
        inverse=solved[1],
        moves=(len(without) - 1) * np.cov(np.array(without).T, bias=True),
        scatter=float(np.mean(squares)),
        between_seeds=_hidden(runs),
        between_sites=_pooled([sites for one in runs for sites in one.gains]),
        freedom=freedom,
        terms=terms,
    )


def _solve(x: Array, y: Array) -> tuple[Array, Array] | None:
    """Return coefficients and (XᵀX)⁻¹. None where the rows don't determine them."""
    if np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    inverse: Array = np.linalg.inv(x.T @ x).astype(np.float64)
    return inverse @ (x.T @ y), inverse


def _pooled(samples: Sequence[Sequence[float]]) -> float:
    """Return the variance within samples, over all of them.

    It is 0 where each is a single value.
    """
    freedom = sum(len(one) - 1 for one in samples)
    squares = sum(float(np.var(one)) * len(one) for one in samples)
    return squares / freedom if freedom else 0.0


def _hidden(runs: Sequence[Runs]) -> float:
    """Return how much of a single run's variance the mean over a setting's seeds hides."""
    taken_off = float(np.mean([1 - 1 / len(one.gains) for one in runs]))
    return _pooled([one.means for one in runs]) * taken_off


@dataclass(frozen=True)
class LeftOut:
    """Hold how well curves predict groups that they have not seen.

    Attributes:
        groups: number of groups of runs with the same sites, or of kinds. Each is predicted from
            the others.
        runs: number of single runs that were predicted.
        inside: share of the runs whose gain was in its 90% interval.
        miss: root mean square of how far predictions were off.
        without: the same if the prediction is the mean of all other settings.
    """

    groups: int
    runs: int
    inside: float
    miss: float
    without: float


def leave_groups_out(runs: Sequence[Runs], terms: Terms | None = None) -> LeftOut | None:
    """Predict each group from all others. None if there are too few.

    Args:
        terms: as for `fit_curve`.
    """
    tried = []
    groups = dict.fromkeys(one.setting.group for one in runs)
    for group in groups:
        others = [one for one in runs if one.setting.group != group]
        if (curve := fit_curve(others, terms)) is None:
            return None
        usual = float(np.mean([one.mean for one in others]))
        left = (one for one in runs if one.setting.group == group)
        tried += [(curve.predict(one.setting), gain, usual) for one in left for gain in one.means]
    return left_out_of(len(groups), tried)


def left_out_of(groups: int, tried: Sequence[tuple[Interval, float, float]]) -> LeftOut | None:
    """Compare what was predicted with what was measured, and with the mean of all others.

    None without any prediction.
    """
    if not tried:
        return None
    inside = [found.low <= gain <= found.high for found, gain, _ in tried]
    errors = [[gain - found.gain for found, gain, _ in tried], [gain - u for _, gain, u in tried]]
    rms = [math.sqrt(float(np.mean(np.square(one)))) for one in errors]
    return LeftOut(groups, len(tried), float(np.mean(inside)), *rms)
