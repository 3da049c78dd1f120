"""What the budget reports of several sites say alike, and which sites say something else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedpriv.report.budget import BudgetReport

MENTIONED = 6  # sites that are listed by name where they agree


def shared(reports: Sequence[BudgetReport], field: str) -> list[tuple[Any, str]]:
    """The values of `field`, each with the sites it is true of; no sites if true of all."""
    groups: dict[Any, list[str]] = {}
    for report in reports:
        groups.setdefault(getattr(report, field), []).append(report.site)
    if len(groups) == 1:
        return [(value, "") for value in groups]
    most = max(groups, key=lambda value: len(groups[value]))
    others = "all others" if len(groups[most]) > MENTIONED else ", ".join(groups[most])
    return [(v, others if v == most else ", ".join(sites)) for v, sites in groups.items()]


def assumptions(reports: Sequence[BudgetReport]) -> list[tuple[str, str]]:
    """Every assumption that is stated, with the sites that state it; no sites if all do."""
    groups: dict[str, list[str]] = {}
    for report in reports:
        for assumption in report.assumptions:
            groups.setdefault(assumption, []).append(report.site)
    return [(a, "" if len(s) == len(reports) else ", ".join(s)) for a, s in groups.items()]
