"""The learning rate of each step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import learning_rate

SCHEDULES: Any = ["constant", "linear", "cosine"]


def rates(schedule: Any, warmup: int, steps: int) -> list[float]:
    settings = OptimizerSection(lr=2.0, schedule=schedule, warmup=warmup)
    return [learning_rate(settings, step, steps) for step in range(1, steps + 1)]


def test_schedules_by_hand() -> None:
    assert rates("constant", 0, 3) == [2, 2, 2]
    assert rates("linear", 0, 4) == [2, 1.5, 1, 0.5]
    assert rates("linear", 2, 4) == [1, 2, 2, 1]
    assert rates("cosine", 0, 4) == pytest.approx([2, 1 + 2**-0.5, 1, 1 - 2**-0.5])


@given(st.sampled_from(SCHEDULES), st.integers(0, 30), st.integers(1, 30))
def test_a_rate_is_positive_rises_first_and_never_again(
    schedule: Any, warmup: int, steps: int
) -> None:
    found = rates(schedule, warmup, steps)
    assert all(0 < rate <= 2 for rate in found)
    rising, falling = found[:warmup], found[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert not falling or falling[0] == 2


@pytest.mark.parametrize("step", [0, 4])
def test_there_are_only_so_many_steps(step: int) -> None:
    with pytest.raises(ValueError, match="steps=3"):
        learning_rate(OptimizerSection(), step, 3)
