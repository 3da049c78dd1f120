"""Other hospitals' patients and new hospitals: a known surface is found, with honest brackets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedpriv_forecasting.answers import PAYS, Answer, of_others
from fedpriv_forecasting.reading import Basis
from fedpriv_forecasting.table import BASE, FEDERATED, OUTSIDE, OWN_RECORDS, SINGLE
from tests.forecasting.made_up_runs import GRID, read, runs
from tests.forecasting.test_federation import of

FEDERATION = of([64] * 16)


def surface(records: float, noise: float) -> float:
    """A gain at outside sites, which is another one than that of own patients."""
    return 0.2 + 0.02 * math.log2(records) - 0.03 * math.log2(noise)


def told(**made: Any) -> dict[tuple[str, str], Answer]:
    basis = Basis((read(runs(others=surface, seeds=1, **made)).points,), (), None)
    return {(one.question, one.over): one for one in of_others(basis, FEDERATION, ())}


def test_a_known_surface_is_found() -> None:
    found, here = told(), surface(64, FEDERATION.noise)
    assert [*found] == [(question, BASE) for question in (OUTSIDE, *OWN_RECORDS)]
    for (question, _), one in found.items():
        assert one.gain is not None and one.verdict == PAYS
        expected = here if question in (OUTSIDE, "0") else here / 2
        assert one.gain.gain == pytest.approx(expected)
        assert one.gain.low == pytest.approx(one.gain.high)
        assert one.federations == 27 and one.left_out is not None and one.left_out.miss < 1e-9


def test_brackets_hold_as_often_as_they_say() -> None:
    """For a further federation, which shares no luck with those that were measured."""
    scatter, held = 0.05, []
    for seed in range(100):
        points = read(runs(others=surface, scatter=scatter, seeds=1, seed=seed)).points
        reading = Basis((points,), (), None).reading(FEDERATION, FEDERATED, BASE, OUTSIDE)
        random = np.random.default_rng([4, seed])
        luck = scatter * (random.normal(size=3).sum() + random.normal() / 3**0.5)
        assert reading is not None
        found = reading.predict(FEDERATION.setting)
        held.append(found.low <= surface(64, FEDERATION.noise) + luck <= found.high)
    assert 0.86 <= np.mean(held) <= 0.98


def test_of_too_few_federations_their_range_is_told_and_no_verdict() -> None:
    one = told(groups=GRID[:2])[OUTSIDE, BASE]
    points = read(runs(groups=GRID[:2])).points
    gains = [surface(point.records, point.noise) for point in points]
    assert (one.gain, one.verdict, one.left_out, one.federations) == (None, None, None, 6)
    assert one.measured == pytest.approx((min(gains), max(gains)))


def test_a_start_is_compared_with_where_it_was_measured() -> None:
    made = runs(others=surface)
    for run in made:
        run["outside"] |= {SINGLE: [3.9] * 3, "warm-start": [3.8] * 3}
    points = read(made).points
    found = [*of_others(Basis((points,), (), None), FEDERATION, ())]
    assert [one.over for one in found if one.question == OUTSIDE] == [BASE, SINGLE]
    assert all(one.gain is not None for one in found)
    assert found[1].federations == found[0].federations
