"""What is said of curves."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv_comparison.comparison import Row
from fedpriv_comparison.figures import Spread, ended_worse, loss_at, reached, steps_to
from fedpriv_comparison.present import chart
from fedpriv_comparison.trial import Result
from fedpriv_comparison.variants import parse_variants


def curve(*losses: float, every: int = 1) -> list[dict[str, Any]]:
    return [{"round": every * i, "eval_loss": loss} for i, loss in enumerate(losses)]


def test_between_two_evaluations_is_a_line() -> None:
    found = curve(4.0, 3.0, 2.5, every=10)
    assert loss_at(found, 0) == 4.0
    assert loss_at(found, 5) == 3.5
    assert loss_at(found, 20) == 2.5
    assert loss_at(found, 21) is None
    assert steps_to(found, 3.5) == 5.0
    assert steps_to(found, 2.75) == 15.0
    assert steps_to(found, 9.0) == 0.0
    assert steps_to(found, 2.0) is None


def test_what_diverged_reaches_nothing_and_is_no_level() -> None:
    nan, inf = float("nan"), float("inf")
    assert loss_at(curve(3.0, nan, 2.0), 1) is None
    assert loss_at(curve(3.0, inf, 2.0), 1.5) is None
    assert loss_at(curve(3.0, inf, 2.0), 2) == 2.0
    assert steps_to(curve(inf, inf, 2.0), 2.5) == 2.0
    assert steps_to(curve(3.0, nan, 2.0), 2.5) == 2.0
    assert steps_to(curve(3.0, nan, nan), 2.5) is None


def test_the_first_time_counts() -> None:
    assert steps_to(curve(4.0, 2.0, 5.0, 1.0), 3.0) == 0.5


def test_worse_is_on_average_by_more_than_a_tie() -> None:
    better, same, worse = curve(3.0, 9.0, 2.0), curve(3.0, 1.0, 3.0004), curve(3.0, 2.0, 3.9)
    nan = curve(3.0, float("nan"))
    pairs = (([better], 0), ([same], 0), ([worse], 1), ([better, worse], 0), ([nan], 1), ([], 0))
    for curves, expected in pairs:
        assert ended_worse([Result(one) for one in curves]) == bool(expected)


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=12))
def test_nobody_saves_anything_over_themselves(losses: list[float]) -> None:
    """Also where a loss rose again: it was there sooner than the rounds say, for both."""
    result, last = Result(curve(*losses)), len(losses) - 1
    for rounds in (max(1, last // 2), last):
        found = reached([(result, result), (result, result)], rounds)
        assert found is not None
        assert (found.seeds, found.of, found.rounds) == (2, 2, rounds)
        assert found.saved == (None if losses[0] <= losses[rounds] else 0)


def test_what_is_saved_is_of_the_way_that_the_baseline_took() -> None:
    theirs, mine = Result(curve(4.0, 2.0, 5.0, 3.0)), Result(curve(4.0, 4.0, 3.0, 1.0))
    found = reached([(mine, theirs)], 3)
    assert found is not None
    assert (found.steps, found.saved) == (2.0, 1 - 2.0 / 0.5)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=12), st.floats(0, 1))
def test_a_curve_reaches_its_own_losses_no_later(losses: list[float], share: float) -> None:
    found = curve(*losses)
    number = share * (len(losses) - 1)
    level = loss_at(found, number)
    assert level is not None
    steps = steps_to(found, level + 1e-9)
    assert steps is not None
    assert steps <= number + 1e-6
    assert steps_to(found, losses[-1]) is not None
    assert loss_at(found, len(losses) - 1) == losses[-1]


def test_long_names_leave_room_for_the_lines() -> None:
    begin = "dp-lora:optimizer.lr=1e-3" + ":optimizer.warmup=0" * 10
    names = ["dp-lora", *(f"{begin}:privacy.clip_norm={norm}" for norm in (1, 2))]
    rows = [
        Row(variant, (), (), (Result(curve(4.0, 3.0)),)) for variant in parse_variants(names, [])
    ]
    labels = re.findall(r">(dp-lora[^<]*)<", chart(rows))
    assert "dp-lora" in labels
    assert len(set(labels)) == len(names)


def test_one_seed_has_no_deviation() -> None:
    assert Spread.of([]) is None
    assert Spread.of([2.0]) == Spread(2.0, None)
    assert Spread.of([1.0, 3.0]) == Spread(2.0, pytest.approx(2**0.5))
