"""What is said of curves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fedpriv_comparison.comparison import Row
from fedpriv_comparison.figures import Spread, ended_worse
from fedpriv_comparison.present import chart
from fedpriv_comparison.trial import Result
from fedpriv_comparison.variants import parse_variants


def curve(*losses: float, every: int = 1) -> list[dict[str, Any]]:
    return [{"round": every * i, "eval_loss": loss} for i, loss in enumerate(losses)]


def test_worse_is_on_average_by_more_than_a_tie() -> None:
    better, same, worse = curve(3.0, 9.0, 2.0), curve(3.0, 1.0, 3.0004), curve(3.0, 2.0, 3.9)
    nan = curve(3.0, float("nan"))
    pairs = (([better], 0), ([same], 0), ([worse], 1), ([better, worse], 0), ([nan], 1), ([], 0))
    for curves, expected in pairs:
        assert ended_worse([Result(one) for one in curves]) == bool(expected)


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
