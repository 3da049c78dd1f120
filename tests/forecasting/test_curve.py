"""The curve, its intervals, and where it ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedpriv_forecasting.curve import (
    Curve,
    Interval,
    Runs,
    fit_curve,
    flat,
    joint,
    leave_groups_out,
    runs_of,
)
from fedpriv_forecasting.curve import plain as plain_terms
from fedpriv_forecasting.reading import Reading
from fedpriv_forecasting.setting import Setting
from tests.forecasting.made_up_runs import GRID, plain, read, runs


def of(points: list[dict[str, Any]]) -> list[Runs]:
    return runs_of(read(points).points, "federated")


def fitted(points: list[dict[str, Any]]) -> Curve:
    curve = fit_curve(of(points))
    assert curve is not None
    return curve


def difference(curve: Curve, here: Setting, there: Setting) -> Interval:
    """How much more the gain is there, as a forecast reads one curve."""
    return Reading((curve,)).difference(here, there)


def test_the_curve_behind_exact_runs_is_found() -> None:
    curve = fit_curve(of(runs()), plain_terms)
    assert curve is not None and curve.coefficients == pytest.approx([0.1, -0.03, -0.05])
    found = curve.predict(Setting(16, 100, 0.004))
    assert found.low == pytest.approx(found.high) == pytest.approx(plain(100, 0.004))
    assert curve.freedom == len(GRID) - 3


def test_intervals_hold_as_often_as_they_say() -> None:
    """Of a federation and of a site, with runs of a group that share their luck."""
    scatter, held, of_site = 0.05, [], []
    for seed in range(300):
        curve = fitted(runs(scatter=scatter, seed=seed))
        random = np.random.default_rng([1, seed])
        setting = Setting(16, 90.0, 0.004)
        truth = plain(setting.records, setting.noise)
        of_run = truth + scatter * random.normal(size=3).sum() + scatter / 2 * random.normal()
        one = truth + scatter * random.normal(size=4).sum()
        found, alone = curve.predict(setting), curve.predict(setting, one_site=True)
        held.append(found.low <= of_run <= found.high)
        of_site.append(alone.low <= one <= alone.high)
        assert alone.low < found.low < found.gain < found.high < alone.high
    assert 0.9 <= np.mean(held) <= 0.97
    assert 0.9 <= np.mean(of_site) <= 0.97


def test_intervals_hold_for_groups_that_were_left_out() -> None:
    found = [leave_groups_out(of(runs(scatter=0.05, seed=seed))) for seed in range(20)]
    known = [one for one in found if one is not None]
    assert len(known) == 20 and known[0].runs == len(runs())
    assert 0.9 <= np.mean([one.inside for one in known]) <= 0.97
    assert np.mean([one.miss for one in known]) < np.mean([one.without for one in known])


def bent(records: float, noise: float) -> float:
    """A gain of which less noise changes more where records are few."""
    return 0.1 + 0.01 * math.log2(records) * math.log2(noise)


def test_another_curve_predicts_what_is_like_it() -> None:
    """As `benchmarks/forecast.py` compares them."""
    made = of(runs(lambda records, noise: math.log2(records) * math.log2(noise)))
    straight, product = leave_groups_out(made, plain_terms), leave_groups_out(made, joint)
    assert straight is not None and straight.miss > 1
    assert product is not None and product.miss < 1e-6
    assert straight.groups == len(GRID)


def test_the_product_is_left_out_where_it_cant_be_told() -> None:
    taken = fitted(runs(bent))
    assert taken.terms is joint
    assert taken.predict(Setting(16, 100, 0.004)).gain == pytest.approx(bent(100, 0.004))
    assert fitted(runs(groups=GRID[1:6])).terms is plain_terms  # five groups


def test_a_difference_holds_as_often_as_it_says() -> None:
    """Also where what was measured is bent: then no curve is right, and the jackknife says so."""
    held = []
    here, there = Setting(16, 64, 0.008), Setting(16, 64, 0.002)
    for seed in range(200):
        more = difference(fitted(runs(scatter=0.02, seed=seed)), here, there)
        held.append(more.low <= plain(64, 0.002) - plain(64, 0.008) <= more.high)
    assert 0.86 <= np.mean(held) <= 0.99
    bowl = runs(lambda m, s: 0.02 * (math.log2(s) + 8) ** 2, scatter=0.002)
    straight = fit_curve(of(bowl), plain_terms)
    assert straight is not None
    step = straight.row(there) - straight.row(here)
    as_if_right = math.sqrt(straight.between_seeds * float(step @ straight.inverse @ step))
    more = difference(straight, here, there)
    assert more.high - more.gain > 3 * as_if_right


def test_more_scatter_makes_wider_intervals() -> None:
    widths = []
    for scatter in (0.0, 0.01, 0.1):
        found = fitted(runs(scatter=scatter)).predict(Setting(16, 64, 0.004))
        widths.append(found.high - found.low)
    assert widths == sorted(widths) and widths[0] < widths[1] < widths[2]


def test_a_difference_is_surer_than_a_gain() -> None:
    curve = fitted(runs(scatter=0.05))
    here, there = Setting(16, 64, 0.008), Setting(32, 64, 0.004)
    more, gains = difference(curve, here, there), [curve.predict(s).gain for s in (here, there)]
    assert more.gain == pytest.approx(gains[1] - gains[0])
    assert 0 < more.high - more.low < curve.predict(here).high - curve.predict(here).low
    assert difference(curve, here, here) == Interval(0.0, 0.0, 0.0)


@pytest.mark.parametrize("points", [runs(groups=GRID[:2]), []])
def test_too_few_runs_make_no_curve(points: list[dict[str, Any]]) -> None:
    known = of(points) if points else []
    assert fit_curve(known) is None
    assert leave_groups_out(known) is None


@pytest.mark.parametrize(
    "groups",
    [GRID[:4], [(n, 64) for n in (4, 6, 8, 12, 16, 24, 32)]],  # records are all the same
)
def test_of_few_groups_the_mean_is_known_alone(groups: list[tuple[int, int]]) -> None:
    curve = fitted(runs(groups=groups, scatter=0.01))
    assert curve.terms is flat
    gains = [curve.predict(one.setting).gain for one in curve.runs]
    assert gains == pytest.approx([float(np.mean([one.mean for one in curve.runs]))] * len(gains))


def test_intervals_hold_of_few_groups() -> None:
    """Of a further group, of which everything that it differs by is scatter for a flat curve."""
    held = []
    for seed in range(300):
        random = np.random.default_rng([2, seed])
        chosen = [GRID[index] for index in random.permutation(len(GRID))[:5]]
        *known, unseen = (
            runs(groups=[group], noises=(2.0,), seeds=1, scatter=0.02, seed=100 * seed + index)
            for index, group in enumerate(chosen)
        )
        curve = fit_curve(of([run for one in known for run in one]), flat)
        assert curve is not None
        (one,) = of(unseen)
        found = curve.predict(one.setting)
        held.append(found.low <= one.mean <= found.high)
    assert 0.86 <= np.mean(held) <= 0.97


ANY = st.floats(1e-6, 1e6)


@given(sites=st.integers(1, 1000), records=ANY, noise=ANY)
@settings(deadline=None)
def test_no_setting_outside_is_without_a_word(sites: int, records: float, noise: float) -> None:
    curve = CURVE
    known = [one.setting for one in curve.runs]
    ranges = [
        (sites, [one.sites for one in known], "sites"),
        (records, [one.records for one in known], "records"),
        (noise, [one.noise for one in known], "noise"),
    ]
    figures = [name for value, of, name in ranges if not min(of) <= value <= max(of)]
    assume(figures)
    words = curve.outside(Setting(sites, records, noise))
    assert all(any(one.startswith(name) for one in words) for name in figures)


CURVE = fitted(runs(scatter=0.01))


def test_what_was_measured_is_inside_and_a_corner_between_is_not() -> None:
    for one in CURVE.runs:
        assert CURVE.outside(one.setting) == []
    known = [one.setting for one in CURVE.runs]
    most, least = max(one.noise for one in known), min(one.noise for one in known)
    for records, noise in ((256, most), (16, least)):  # each within its range, but not together
        (words,) = CURVE.outside(Setting(16, records, noise))
        assert words.startswith("records and noise together")
        assert "by a factor of" in words or "at the same time" in words
