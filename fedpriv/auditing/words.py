"""What an audit says, in words: for a terminal and for the report."""

from __future__ import annotations

from fedpriv.auditing.result import WORLDS, Audit, Measure, Part, World


def shown(measure: Measure) -> str:
    """Show a figure in one line."""
    text = f"{measure.name} {measure.value:.3g}"
    if measure.low is not None and measure.high is not None:
        text += f" [{measure.low:.2f}, {measure.high:.2f}]"
    return text


def shown_with_chance(measure: Measure) -> str:
    """Show the same, and what an attacker has who knows nothing."""
    chance = "" if measure.by_chance is None else f", by chance {measure.by_chance:.3g}"
    return shown(measure) + chance


def verdict(part: Part, world: World) -> str:
    """Say what a row comes to, in a few words."""
    if world.wanted:
        return "caught" if world.found else "NOT CAUGHT"
    if world.name in ("as-claimed", "run"):
        broken = world.epsilon_lower is not None and world.epsilon_lower > part.epsilon
        if broken:
            return "CLAIM BROKEN"
        return "more than chance" if world.found else "nothing found"
    return "found" if world.found else "not told apart"


def conclusion(audit: Audit) -> str:
    """Say one sentence on the whole."""
    if not audit.holds:
        broken = ", ".join(part.name for part in audit.parts if not part.holds)
        return f"The claim does not hold: {broken} proved more."
    if not audit.sound:
        missed = ", ".join(
            f"{part.name}, {WORLDS[world.name]}" for part in audit.parts for world in part.missed
        )
        return f"Nothing broke the claim, but that says little: not caught was {missed}."
    return "No attack broke the claim, and every twin was caught that had to be."
