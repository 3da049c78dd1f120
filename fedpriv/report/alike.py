"""Sites with the same figures, so that sixty-four lines need not say one thing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

MOST_ALIKE = 8  # sites with the same figures that have a row each; more have one
Site = TypeVar("Site")


def rows_of(sites: Iterable[Site], figures: Callable[[Site], Hashable]) -> list[list[Site]]:
    """The sites of each row of a table, by the first of each.

    Args:
        figures: all that a row says of a site besides its name.
    """
    groups: dict[Hashable, list[Site]] = {}
    for site in sites:
        groups.setdefault(figures(site), []).append(site)
    rows = []
    for alike in groups.values():
        rows += [alike] if len(alike) > MOST_ALIKE else [[site] for site in alike]
    return rows


def said_together(names: list[str]) -> str:
    """What stands for the names of a row."""
    return names[0] if len(names) == 1 else f"each of {len(names)}"
