"""An audit as tables on a terminal."""

from __future__ import annotations

from rich.table import Table

from fedpriv.auditing.result import TITLES, WORLDS, Part, shown, verdict

MOST = 2  # figures of a world; audit.json has all


def table(part: Part) -> Table:
    """Show one part: a row for each world."""
    title = f"{TITLES[part.name]}: claimed ε = {part.epsilon:.3g} at δ = {part.delta:.2g}"
    made = Table(title=title, title_justify="left")
    for name in ("world", "its ε", "ε at least", "found", ""):
        made.add_column(name, justify="left" if name in ("world", "found", "") else "right")
    for world in part.worlds:
        proved = "" if world.epsilon_lower is None else f"{world.epsilon_lower:.2f}"
        cost = "none" if world.epsilon is None else f"{world.epsilon:.3g}"
        figures = "\n".join(map(shown, world.measures[:MOST]))
        made.add_row(WORLDS[world.name], cost, proved, figures, verdict(part, world))
    return made
