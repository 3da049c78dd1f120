"""The tables and charts of `benchmarks/border.py`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from fedpriv.report.charts import PALETTE, Line, line_chart, standalone

Entries = Sequence[dict[str, Any]]  # of one kind and point, by seed; see benchmarks/border.py
POINT = ("sites", "records", "trust", "epsilon")
WAYS = {  # row of a point → its column, a gain over the site alone
    "alone+alone": "a second own",
    "federated": "federated",
    "federated+personal": "personal",
    "federated+both": "all three",
    "federated+fifth": "fifth",
    "federated+averaged": "averaged",
    "lora+personal": "no noise: personal",
    "lora+fifth": "no noise: fifth",
}
BEST = "federated+both"
SHARES = {  # column → the share of sites and seeds where the first beats the second
    "pays": (BEST, "alone"),
    "beats a second": (BEST, "alone+alone"),
}
COLUMNS = ("sites", "records", "trust", "ε", "σ", "alone", *WAYS.values(), *SHARES)
MEANING = (
    "alone: loss on a site's own held-out records, mean over the scored sites, of a model that it"
    " trained by itself without noise. Then by how much that falls with another model: a second of"
    " its own beside it (equal weights); the federation's adapter (federated); that trained further"
    " (personal); own, personal and federated together, with 0.4, 0.4 and 0.2 of the weight (all"
    " three); the federated one beside the site's own with a fifth, or with the weight that"
    " validation records choose; and personal and fifth of an adapter that was trained together"
    " without noise. Mean ± deviation over the seeds. pays, beats a second: share of the sites and"
    " seeds at which 'all three' has a lower loss than alone, and than two own models."
)
SHOWN, EPSILON = BEST, 4.0  # in the chart


def by_point(entries: Entries) -> list[Entries]:
    """Group the entries by point, in the order of each point's first entry."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for entry in entries:
        found[*(entry[key] for key in POINT), entry.get("warm_start", False)].append(entry)
    return list(found.values())


def gains(entry: dict[str, Any], way: str, other: str = "alone") -> list[float]:
    """Return by how much each scored site's own loss is lower with one model than with another.

    The list is empty if one of the two was not measured.
    """
    own = entry["own"]
    if way not in own or other not in own:
        return []
    return [theirs - mine for theirs, mine in zip(own[other], own[way], strict=True)]


def cells(entries: Entries) -> list[str]:
    """Write the row of the table for a point."""
    first = entries[0]
    shares = []
    for way, other in SHARES.values():
        lower = [gain > 0 for entry in entries for gain in gains(entry, way, other)]
        shares.append(f"{statistics.fmean(lower):.0%}" if lower else "")
    return [
        str(first["sites"]),
        f"{first['records']:,}",
        first["trust"] + (", warm start" if first.get("warm_start") else ""),
        f"{first['epsilon']:g}",
        f"{first['noise_multiplier']:.2f}",
        _spread([statistics.fmean(entry["own"]["alone"]) for entry in entries], ".3f"),
        *(
            _spread([statistics.fmean(g) for entry in entries if (g := gains(entry, way))], "+.3f")
            for way in WAYS
        ),
        *shares,
    ]


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return ""
    mean = f"{statistics.fmean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def table(title: str, entries: Entries) -> Table:
    """Make the table for the terminal."""
    made = Table(title=title, title_justify="left")
    for name in COLUMNS:
        made.add_column(name, justify="left" if name == "trust" else "right")
    for point in by_point(entries):
        made.add_row(*cells(point))
    return made


def markdown(title: str, entries: Entries) -> str:
    """Write the same table for a document."""
    lines = [f"### {title}", "", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(point)) + " |" for point in by_point(entries)]
    return "\n".join(lines) + "\n"


def chart(kind: str, entries: Entries) -> str:
    """Draw, as an SVG, the gain over alone by records a site: a line per number of sites and trust.

    It shows `SHOWN` at one ε, without a warm start. It is empty if nothing was measured there.
    """
    lines: dict[tuple[int, str], dict[float, float]] = defaultdict(dict)
    cold = [entry for entry in entries if not entry.get("warm_start")]
    for point in by_point([entry for entry in cold if entry["epsilon"] == EPSILON]):
        gain = statistics.fmean(statistics.fmean(gains(entry, SHOWN)) for entry in point)
        first = point[0]
        lines[first["sites"], first["trust"]][math.log2(first["records"])] = gain
    if not lines:
        return ""
    drawn = [
        Line(
            f"{sites} sites, {trust}",
            sorted(lines[sites, trust].items()),
            f"series-{index % PALETTE}",
        )
        for index, (sites, trust) in enumerate(sorted(lines))
    ]
    places = [place for line in drawn for place, _ in line.points]
    level = Line("alone", [(min(places), 0.0), (max(places), 0.0)], "quiet", 1.2, dashed=True)
    svg = line_chart(
        f"border-{kind}",
        [level, *drawn],
        width=880,
        height=360,
        from_zero=False,
        across="records a site",
        places=_power,
        description="Gain over a site alone, by the records of a site",
    )
    return standalone(svg)


def _power(place: float) -> str:
    return f"{2**place:,.0f}"
