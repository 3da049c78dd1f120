"""An audit as tables on a terminal."""

from __future__ import annotations

from rich.table import Table

from fedpriv.audit.result import TITLES, WORLDS, Audit, Measure, Part, World


def table(part: Part) -> Table:
    """One part: a row for each world."""
    title = f"{TITLES[part.name]}: claimed ε = {part.epsilon:.3g} at δ = {part.delta:.2g}"
    made = Table(title=title, title_justify="left")
    for name in ("world", "its ε", "ε at least", "found", ""):
        made.add_column(name, justify="left" if name in ("world", "found", "") else "right")
    for world in part.worlds:
        proved = "" if world.epsilon_lower is None else f"{world.epsilon_lower:.2f}"
        cost = "none" if world.epsilon is None else f"{world.epsilon:.3g}"
        figures = "\n".join(map(shown, world.measures))
        made.add_row(WORLDS[world.name], cost, proved, figures, verdict(part, world))
    return made


def shown(measure: Measure) -> str:
    """A figure in one line."""
    text = f"{measure.name} {measure.value:.3g}"
    if measure.low is not None and measure.high is not None:
        text += f" [{measure.low:.3g}, {measure.high:.3g}]"
    return text if measure.by_chance is None else f"{text}, by chance {measure.by_chance:.3g}"


def verdict(part: Part, world: World) -> str:
    """What a row comes to, in a few words."""
    if world.wanted:
        return "caught" if world.found else "NOT CAUGHT"
    if world.name in ("as-claimed", "run"):
        broken = world.epsilon_lower is not None and world.epsilon_lower > part.epsilon
        if broken:
            return "CLAIM BROKEN"
        return "more than chance" if world.found else "nothing found"
    return "found" if world.found else "not told apart"


def conclusion(audit: Audit) -> str:
    """One sentence on the whole."""
    if not audit.holds:
        broken = ", ".join(part.name for part in audit.parts if not part.holds)
        return f"The claim does not hold: {broken} proved more."
    if not audit.sound:
        missed = ", ".join(
            f"{part.name}, {WORLDS[world.name]}" for part in audit.parts for world in part.missed
        )
        return f"Nothing broke the claim, but that says little: not caught was {missed}."
    return "No attack broke the claim, and each would have seen the faults it was tried on."
