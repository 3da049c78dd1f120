"""What the gate takes, by how many records, and what it does when it can't tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ConfigError
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.training.config import GateSection
from fedpriv.training.gate import FEWEST, PASSES, Choice, Gate


class Judge:
    """Knows the loss of each move, and remembers by which records it was asked."""

    def __init__(self, losses: Sequence[float]) -> None:
        self._losses = losses
        self.asked: list[list[Any]] = []

    def __call__(self, examples: Sequence[Any], vector: Any) -> float:
        self.asked.append(list(examples))
        return self._losses[vector.value]


def choose(
    losses: Sequence[float], *, number: int = 1, units: float = 100.0, share: float = 0.5
) -> tuple[Choice, list[list[Any]]]:
    judge, records = Judge(losses), list(range(60))
    made = Gate(GateSection(data=Path("x"), share=share), records, judge, seed=3)  # type: ignore[arg-type]
    moves = {str(index): lambda index=index: public(index) for index in range(len(losses))}
    return made.choose(moves, number=number, units=units), judge.asked


@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, math.nan, math.inf]), min_size=1, max_size=5))
def test_the_lowest_loss_is_taken_and_of_equal_ones_the_first(losses: list[float]) -> None:
    choice, _ = choose(losses)
    ranked = [loss if math.isfinite(loss) else math.inf for loss in losses]
    assert choice.taken == str(ranked.index(min(ranked)))
    known = [loss if math.isfinite(loss) else None for loss in losses]
    assert list(choice.losses.values()) == known


@given(
    moves=st.integers(1, 4),
    units=st.floats(0, 500),
    share=st.floats(0.001, 1),
    number=st.integers(1, 50),
)
def test_it_looks_at_no_more_than_its_share(
    moves: int, units: float, share: float, number: int
) -> None:
    choice, asked = choose([1.0] * moves, number=number, units=units, share=share)
    assert sum(map(len, asked)) <= share * units * PASSES
    assert choice.records in (0, *range(FEWEST, 61))
    if not choice.records:
        assert choice == Choice("0", {}, 0) and not asked
    assert all(records == asked[0] for records in asked)  # the same for every move


def test_records_change_from_round_to_round_and_are_the_same_again() -> None:
    first, second, again = (choose([1.0], number=n, units=30.0)[1] for n in (1, 2, 1))
    assert first == again != second


def test_too_few_records_are_refused() -> None:
    with pytest.raises(ConfigError, match="has 3 records") as caught:
        Gate(GateSection(data=Path("x")), [1, 2, 3], Judge([]), seed=0)  # type: ignore[list-item]
    assert caught.value.key == "gate.data"
