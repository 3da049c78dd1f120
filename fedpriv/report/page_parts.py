"""What the pages of runs, sites and dossiers have in common: templates, colours and words."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fedpriv.pki.points import in_groups
from fedpriv.report.figures import amount, duration, lower, score, small, upper, when

if TYPE_CHECKING:
    from jinja2 import Environment

RULES = {
    "plan": "One plan of private steps, fixed before the first release, for the whole life of"
    " the ledger. Steps that were skipped, failed or never reached stay charged.",
    "rdp": "A Rényi filter at a fixed order: every plan is debited before its first step, and one"
    " that would overrun the budget is refused, so the budget is the claim. The first plan's ε"
    " holds what it costs to turn a sum of steps into an ε, and no later plan pays that again.",
    "sum": "Basic composition: the ε and δ of the separate plans are added up, and one that would"
    " overrun the budget is refused, so the budget is the claim.",
}
COLOURS = {  # role → (colour on a light page, colour on a dark page)
    "ink": ("#22262b", "#dde1e4"),
    "quiet": ("#6a6f76", "#98a0a8"),
    "rule": ("#e2dfd6", "#2d3338"),
    "accent": ("#17616e", "#6fc3cd"),
    "series-0": ("#b4581a", "#e59a5f"),
    "series-1": ("#3a6ea5", "#7fb2e5"),
    "series-2": ("#4b7f3a", "#93c47d"),
    "series-3": ("#8a4f9e", "#c79bd8"),
    "series-4": ("#9a7a10", "#d9bd5a"),
    "series-5": ("#b23a5e", "#e58aa3"),
}


def score_names(task: str) -> dict[str, str]:
    """Return field → the score's name for people."""
    return {
        "eval_loss": "Held-out loss",
        "eval_accuracy": "Next-token accuracy" if task == "causal-lm" else "Accuracy",
        "eval_auc": "AUC",
    }


def score_rows(
    task: str, before: object, after: object, prefix: str = "eval_"
) -> list[tuple[str, float | None, float | None]]:
    """Return rows (name, before, after) of the scores that were measured on the held-out records.

    Args:
        before, after: objects with a field for each score; None has no scores.
        prefix: what the names of those fields begin with.
    """
    named = ((key.replace("eval_", prefix), name) for key, name in score_names(task).items())
    rows = [(n, getattr(before, f, None), getattr(after, f, None)) for f, n in named]
    return [row for row in rows if row[1:] != (None, None)]


def css_colours(*, dark: bool = False) -> str:
    """Return the colours as CSS variables, named by their roles."""
    return " ".join(f"--{role}: {pair[dark]};" for role, pair in COLOURS.items())


@cache
def templates(*packages: str) -> Environment:
    """Return the report's templates. Templates of `packages` with pages like it come first."""
    import jinja2

    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(name, ".") for name in (*packages, "fedpriv.report")]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (in_groups, upper, lower, score, amount, when, duration, small)
    found.filters.update({function.__name__: function for function in filters})
    return found
