"""How a federation reads curves that are like it in all but one respect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpriv_forecasting.curve import Curve, fit_curve, level_of, runs_of
from fedpriv_forecasting.reading import Basis, Reading, leave_kinds_out
from fedpriv_forecasting.setting import Setting
from tests.forecasting.made_up_runs import GRID, Gain, plain, read, runs
from tests.forecasting.test_federation import of

HERE = Setting(16, 64.0, 0.004)


def curve_of(points: list[dict[str, Any]]) -> Curve:
    known = runs_of(read(points).points, "federated")
    found = fit_curve(known) or level_of(known)
    assert found is not None
    return found


def moved(by: float) -> Gain:
    return lambda records, noise: plain(records, noise) + by


def test_one_curve_is_read_as_it_is() -> None:
    curve = curve_of(runs(scatter=0.01))
    assert Reading((curve,)).predict(HERE) == curve.predict(HERE)
    assert Reading((curve,)).outside(HERE) == []
    assert Reading((curve,)).left_out() is not None
    assert Reading((curve,), "model.name: x").outside(HERE) == ["model.name: x"]


def test_kinds_that_differ_widen_the_bracket_of_another_one() -> None:
    for apart in (0.0, 0.1):
        curves = tuple(curve_of(runs(moved(by), scatter=0.001)) for by in (-apart, 0, apart))
        reading = Reading(curves, "model.name: x")
        found = reading.predict(HERE)
        assert found.gain == pytest.approx(plain(HERE.records, HERE.noise), abs=0.01)
        half = 2.92 * apart * (4 / 3) ** 0.5  # t of two degrees of freedom
        assert found.high - found.gain == pytest.approx(half, abs=0.01)
        assert reading.outside(HERE) == [] and "3 measured kinds" in reading.widened[0]


@pytest.mark.slow
@pytest.mark.parametrize(("groups", "kinds"), [(GRID, 2), (GRID, 4), (GRID[4:6], 3)])
def test_brackets_hold_for_a_kind_that_was_not_measured(
    groups: tuple[tuple[int, int], ...], kinds: int
) -> None:
    """Kinds are drawn around a curve; what was drawn last is predicted from the others."""
    held = []
    for seed in range(200):
        random = np.random.default_rng([3, seed])
        offsets = 0.1 * random.normal(size=kinds + 1)
        curves = tuple(
            curve_of(runs(moved(by), groups=groups, seeds=1, scatter=0.01, seed=9 * seed + index))
            for index, by in enumerate(offsets[:-1])
        )
        truth = moved(offsets[-1])
        (one,) = runs_of(
            read(
                runs(truth, groups=[(16, 64)], noises=(2.0,), seeds=1, scatter=0.01, seed=seed)
            ).points,
            "federated",
        )
        found = Reading(curves, "model.name: x").predict(one.setting)
        held.append(found.low <= one.mean <= found.high)
    assert np.mean(held) >= 0.88


def test_a_kind_is_left_out_as_a_whole() -> None:
    curves = [curve_of(runs(moved(by), seeds=1)) for by in (0.0, 0.1, 0.2)]
    assert leave_kinds_out(curves[:2]) is None
    found = leave_kinds_out(curves)
    assert found is not None and (found.groups, found.runs) == (3, 3 * 27)
    assert 0.9 <= found.inside <= 1


def test_patients_reach_from_one_record_to_as_many_as_enter_a_step() -> None:
    curve = curve_of(runs(scatter=0.01))
    few, many = (curve.predict(Setting(16, records, 0.004)) for records in (32, 128))
    reading = Reading((curve,), records_per_unit=4)
    found = reading.predict(Setting(16, 32.0, 0.004))
    assert (found.low, found.high) == (min(few.low, many.low), max(few.high, many.high))
    assert "patients of 4" in reading.widened[0]
    words = reading.outside(Setting(16, 128.0, 0.004))
    assert any(one.startswith("records at a site: 512") for one in words)


def test_runs_of_the_unit_come_before_those_of_records() -> None:
    """As far as there are enough of them."""
    federation = replace(of([64] * 8), records_per_unit=4)
    records = read(runs()).points
    for groups, per_unit in ((GRID, 1), (GRID[:2], 4)):
        patients = read(runs(moved(1.0), groups=groups, unit="patient")).points
        basis = Basis((patients,), (records,), None)
        reading = basis.reading(federation, "federated")
        assert reading is not None and reading.records_per_unit == per_unit
        expected = plain(64, 0.004) + 1 if per_unit == 1 else plain(128, 0.004)  # 64 to 256
        assert reading.predict(HERE).gain == pytest.approx(expected)


def test_a_kind_of_which_little_was_measured_is_read_among_the_others() -> None:
    federation = of([64] * 8)
    few = read(runs(moved(0.1), groups=GRID[4:5])).points
    alone = Basis((few,), (), None)
    assert alone.reading(federation, "federated") is None
    among = Basis((few, read(runs()).points), (), None).reading(federation, "federated")
    assert among is not None and len(among.curves) == 2 and among.outside(HERE) == []
    patients = replace(federation, records_per_unit=4)
    mixed = Basis((few, ()), ((), read(runs()).points), None).reading(patients, "federated")
    assert mixed is not None and (len(mixed.curves), mixed.records_per_unit) == (2, 4)
    enough = Basis((read(runs()).points, few), (), None).reading(federation, "federated")
    assert enough is not None and len(enough.curves) == 1
