"""What a run's charts show: which curves, with which names, thinned to what can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedpriv.report.alike import grouped
from fedpriv.report.charts import PALETTE, Line, line_chart, thin
from fedpriv.report.figures import score
from fedpriv.report.rundir import Round, RunDirectory, finite

POINTS = 240  # of one line; a page has no pixels to show more
ALL_POINTS = 3000  # of all lines of a chart together
NAMED_LINES = 12  # more can't be told apart, so then only the worst is named
SIZES = ((880, 300), (372, 260))  # px, for a wide page and for a narrow one


def charts(directory: RunDirectory) -> dict[str, list[str]]:
    """Return name → SVG elements, a wide and a narrow one, for each chart."""
    if not directory.rounds:
        return {"loss": [], "epsilon": []}
    loss, spent = _loss_lines(directory), _epsilon_lines(directory)
    return {
        "loss": _drawn("loss", loss, "Held-out loss by round", from_zero=False),
        "epsilon": _drawn("epsilon", spent, "Epsilon spent by site and round"),
    }


def _drawn(name: str, lines: list[Line], said: str, **how: Any) -> list[str]:
    """Draw a chart in each size, if it has lines; `how` has further arguments of `line_chart`."""
    how |= {"description": said}
    return [
        # safe: matplotlib escapes the text it is given
        Markup(line_chart(f"{name}-{width}", lines, width=width, height=height, **how))
        for width, height in SIZES
        if lines
    ]


def _loss_lines(directory: RunDirectory) -> list[Line]:
    rounds, baseline = directory.rounds, directory.run.baseline
    points = [(float(row.round), row.eval_loss) for row in rounds if finite(row.eval_loss)]
    before = None if baseline is None else baseline.eval_loss
    if not points:
        return []
    lines = []
    if finite(before):
        level = [(0.0, before), (points[-1][0], before)]
        lines.append(Line(f"before {score(before)}", level, "quiet", 1.2, dashed=True))
        points = [(0.0, before), *points]
    lines.append(Line(f"after {score(points[-1][1])}", thin(points, POINTS), "accent", 2.2))
    return lines


def _epsilon_lines(directory: RunDirectory) -> list[Line]:
    """Return lines of ε spent by site. Sites with the same curve share a line."""
    curves = grouped((_spent(name, directory.rounds), name) for name in directory.site_names)
    curves.pop((), None)
    if not curves:
        return []
    by_end = sorted(curves.items(), key=lambda item: -item[0][-1][1])
    few = len(by_end) <= NAMED_LINES
    at_most = max(24, min(POINTS, ALL_POINTS // len(by_end)))
    lines = _committed_line(directory)
    for rank, (curve, names) in enumerate(by_end):
        named = few or rank == 0
        label = _named(names) if named else ""
        colour = f"series-{rank % PALETTE}" if few else "accent" if named else "quiet"
        width = 1.8 if few else 2.2 if named else 0.7
        lines.append(Line(label, thin(curve, at_most), colour, width))
    return lines[::-1]  # the worst is drawn over the others


def _committed_line(directory: RunDirectory) -> list[Line]:
    """Return the level of the largest claim, which no curve may cross."""
    worst = max((report.epsilon_committed for report in directory.reports), default=None)
    if worst is None:
        return []
    first, last = directory.rounds[0].round - 1.0, float(directory.rounds[-1].round)
    return [Line("largest claim", [(first, worst), (last, worst)], "quiet", 1.2, dashed=True)]


def _spent(name: str, rounds: Sequence[Round]) -> tuple[tuple[float, float], ...]:
    """Return points (round, ε spent). A round without the site's figure costs it nothing new."""
    points, spent = [(rounds[0].round - 1.0, 0.0)] if rounds[0].round == 1 else [], None
    for row in rounds:
        site = row.sites.get(name)
        if site is not None and finite(site.epsilon_spent):
            spent = site.epsilon_spent
        if spent is not None:
            points.append((float(row.round), spent))
    return tuple(points) if spent is not None else ()


def _named(names: Sequence[str]) -> str:
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    room = 18 - len(more)
    return (names[0] if len(names[0]) <= room else names[0][: room - 1] + "…") + more
