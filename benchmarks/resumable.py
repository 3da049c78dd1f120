"""For studies of many points: say the hours first, stop when asked, and go on later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from fedpriv.errors import FedprivError
from fedpriv.process import stop_on_terminate

Point = TypeVar("Point")


def plan(seconds: Iterable[tuple[str, float]], console: Console) -> None:
    """Say what is to be done, in order: names, and seconds of a processor."""
    table = Table("point", "minutes of a processor", "hours so far", box=None)
    total = 0.0
    for name, of_point in seconds:
        total += of_point
        table.add_row(name, f"{of_point / 60:.0f}", f"{total / 3600:.1f}")
    console.print(table)


def each(
    points: Sequence[Point], hours: float, measure: Callable[[Point], None], console: Console
) -> int:
    """Measure the points in turn, and begin none after `hours` hours. Return the exit code."""
    stop_on_terminate()
    begun = time.monotonic()
    try:
        for point in points:
            if time.monotonic() - begun > 3600 * hours:
                console.print(f"{hours:g} hours are over; the same command goes on.")
                break
            measure(point)
    except KeyboardInterrupt:
        console.print("\nStopped; the same command goes on from here.")
        return 130
    except (FedprivError, OSError) as error:
        console.print(f"error: {error}", markup=False)
        return 1
    return 0
