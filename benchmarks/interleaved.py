"""Time several ways to do the same, in turn and in one process. For the scripts beside it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Seconds = dict[str, float]


def interleaved(cases: Mapping[str, Callable[[], Any]], repeats: int) -> list[Seconds]:
    """Time each case in each turn, with every other turn backwards.

    The first turn is not counted.
    """
    for case in cases.values():
        case()
    turns = []
    for index in range(repeats):
        turn = {}
        for name in list(cases)[:: 1 if index % 2 else -1]:
            started = time.perf_counter()
            cases[name]()
            turn[name] = time.perf_counter() - started
        turns.append(turn)
    return turns


def median(turns: list[Seconds], name: str) -> float:
    """Return the median of a case's seconds."""
    return statistics.median(turn[name] for turn in turns)


def ratio(turns: list[Seconds], name: str, to: str) -> float:
    """Return the median of a case's seconds over another's in the same turn."""
    return statistics.median(turn[name] / turn[to] for turn in turns)
