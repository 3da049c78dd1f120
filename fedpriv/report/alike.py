"""Group sites that say the same, so that sixty-four lines need not say one thing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from fedpriv.report.budget import BudgetReport

MOST_ALIKE = 8  # up to so many sites with the same figures have a row each; more share one row
Site = TypeVar("Site")
Said = TypeVar("Said", bound=Hashable)


def grouped(said: Iterable[tuple[Said, Site]]) -> dict[Said, list[Site]]:
    """Group sites by what they say."""
    groups: dict[Said, list[Site]] = {}
    for what, site in said:
        groups.setdefault(what, []).append(site)
    return groups


def rows_of(sites: Iterable[Site], figures: Callable[[Site], Hashable]) -> list[list[Site]]:
    """Group the sites into the rows of a table, ordered by the first site of each group.

    Args:
        figures: returns all that a row says about a site besides its name.
    """
    rows = []
    for alike in grouped((figures(site), site) for site in sites).values():
        rows += [alike] if len(alike) > MOST_ALIKE else [[site] for site in alike]
    return rows


def said_together(names: list[str]) -> str:
    """Return the text that a row shows in the place of its sites' names."""
    return names[0] if len(names) == 1 else f"each of {len(names)}"


MENTIONED = 6  # at most so many sites that agree are listed by name


def shared(reports: Sequence[BudgetReport], field: str) -> list[tuple[Any, str]]:
    """Return the values of `field`, each with its sites; no sites if all state the same value."""
    groups = grouped((getattr(report, field), report.site) for report in reports)
    if len(groups) <= 1:
        return [(value, "") for value in groups]
    most = max(groups, key=lambda value: len(groups[value]))
    others = "all others" if len(groups[most]) > MENTIONED else ", ".join(groups[most])
    return [(v, others if v == most else ", ".join(sites)) for v, sites in groups.items()]


def assumptions(reports: Sequence[BudgetReport]) -> list[tuple[str, str]]:
    """Return every stated assumption, with the sites that state it; no sites if all do."""
    groups = grouped((text, report.site) for report in reports for text in report.assumptions)
    return [(a, "" if len(s) == len(reports) else ", ".join(s)) for a, s in groups.items()]
