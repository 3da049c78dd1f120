"""A comparison as a table for the terminal, as Markdown, as JSON, and as a chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedpriv import __version__
from fedpriv.files import finite_json
from fedpriv.report.charts import PALETTE, Line, line_chart, standalone
from fedpriv.report.figures import amount
from fedpriv_comparison.comparison import Comparison, Row
from fedpriv_comparison.figures import (
    AtHome,
    Figures,
    Reached,
    Spread,
    outside_in_words,
    worse_than_base,
)
from fedpriv_comparison.variants import UNTRAINED

GOOD = ("settings", "loss", "Δ", "accuracy", "AUC", "hardest")
HOME = ("own loss", "Δ alone", "pays", "worst site", "own accuracy", "own AUC", "rate × passes")
COST = ("½T", "T", "ε", "up", "s")
LABEL = 40  # letters of a name beside its line in the chart
MEANING = (
    "loss, accuracy, AUC: on the reported records after the last round, mean ± deviation over the"
    " seeds; hardest: the loss on those that were worst for the base model. Δ: of the losses of"
    " equal seeds, against the baseline. own: on each site's own held-out records, mean over the"
    " sites. Δ alone: of the own losses of equal seeds, against each site alone without noise."
    " pays: share of the sites that do better than alone and than base, by more than the last"
    " digit shown; and whether all of them do on the mean, by an interval of 90% over the sites."
    " Against two own models that answer together, which are better than one, `fedpriv simulate"
    " --personal` holds it."
    " outside: the loss at sites that took no part, mean over these; new N: the same of a new site"
    " there that trained further on N units of its own. A model that each site trained alone is the"
    " one that is best there by other records. not sure: an interval of 90% over the outside sites"
    " holds both ways."
    " rate × passes: what sites that trained by themselves chose by cross-"
    " validation. ½T, T: private steps to the loss that the baseline has after half, and all, of"
    " its own, and the share saved of those that it took. up: sent by all sites in a run. s:"
    " seconds of a run's rounds. * the best setting is at the end of its grid: better ones may lie"
    " beyond."
)


def parts(rows: Sequence[Figures]) -> dict[str, Sequence[str]]:
    """Return the title of each table for the terminal → its columns."""
    counts = next((row.outside.loss for row in rows if row.outside is not None), ())
    return {
        "How good": GOOD,
        "How good for each site's own people": HOME,
        "How good for outside sites": [_new(count) for count in counts],
        "How soon, at what cost": COST,
    }


def _new(count: str) -> str:
    return "outside" if count == "0" else f"new {count}"


def columns(rows: Sequence[Figures]) -> list[str]:
    """Return all columns, the method first."""
    return ["method", *(name for part in parts(rows).values() for name in part)]


def cells(figures: Figures, seeds: int, outside: Sequence[str] = ()) -> list[str]:
    """Write a row of the table as text.

    Args:
        outside: the columns of outside sites.
    """
    scores = figures.scores
    if not scores:
        first = figures.failed[0] if figures.failed else "not run"
        rest = len((*GOOD, *HOME, *outside, *COST)) - 1
        return [figures.name, f"failed: {first}"] + [""] * rest
    losses = {} if figures.outside is None else figures.outside.loss
    found = {_new(count): loss for count, loss in losses.items()}
    missing = f" ({figures.runs} of {seeds} runs)" if figures.runs < seeds else ""
    return [
        figures.name,
        _settings(figures),
        _spread(scores.get("eval_loss"), ".3f") + missing,
        _spread(figures.difference, "+.3f"),
        _spread(scores.get("eval_accuracy"), ".1%"),
        _spread(scores.get("eval_auc"), ".3f"),
        _spread(scores.get("eval_hardest"), ".3f"),
        *_home(figures.home),
        *(_spread(found.get(name), ".3f") for name in outside),
        _reached(figures.half),
        _reached(figures.full),
        "" if figures.epsilon is None else f"{figures.epsilon:.2f}",
        amount(figures.bytes_up) if figures.bytes_up else "",
        f"{figures.seconds:.0f}",
    ]


def _home(home: AtHome | None) -> list[str]:
    """Write the cells of `HOME`."""
    if home is None:
        return [""] * len(HOME)
    return [
        _spread(home.loss, ".3f"),
        _spread(home.difference, "+.3f"),
        _pays(home),
        _spread(home.worst, ".3f"),
        _spread(home.accuracy, ".1%"),
        _spread(home.auc, ".3f"),
        _trained(home),
    ]


def _pays(home: AtHome) -> str:
    if home.pays is None:
        return ""
    return f"{home.pays.mean:.0%}" + (f", {home.verdict}" if home.verdict else "")


def _trained(home: AtHome) -> str:
    """Write the sites' choice if it is the same for all; else the number of listed choices."""
    found = list(dict.fromkeys(text for texts in home.trained.values() for text in texts))
    return f"{len(found)} choices" if len(found) > 1 else "".join(found)


def remarks(rows: Sequence[Figures]) -> list[str]:
    """Write what was chosen at each site, and what else a reader of the table needs to know."""
    found = []
    for row in rows:
        if row.home is not None and len(set(map(tuple, row.home.trained.values()))) > 1:
            sites = "; ".join(f"{n} {', '.join(t)}" for n, t in row.home.trained.items())
            found.append(f"{row.name}, rate × passes by site: {sites}")
    if risen := [row.name for row in rows if row.worse]:
        found.append(
            f"Worse than before training: {', '.join(risen)}. Use the base model as it is, or try a"
            " lower learning rate, fewer rounds or more records."
        )
    worse = worse_than_base(rows)
    return [*found, *([worse] if worse else []), *outside_in_words(rows)]


def tables(rows: Sequence[Figures], seeds: int) -> list[Table]:
    """Make the terminal's tables, without empty columns: how good, and how soon at what cost."""
    named, found = columns(rows), []
    texts = _texts(rows, seeds)
    for title, part in parts(rows).items():
        shown = _shown(texts, [named.index(name) for name in part])
        if part is not GOOD and part is not COST and len(shown) == 1:
            continue
        made = Table(*(named[i] for i in shown), title=title, title_justify="left")
        for text in texts:
            made.add_row(*(Text(text[i]) for i in shown))
        found.append(made)
    return found


def _texts(rows: Sequence[Figures], seeds: int) -> list[list[str]]:
    outside = parts(rows)["How good for outside sites"]
    return [cells(row, seeds, outside) for row in rows]


def _shown(texts: Sequence[Sequence[str]], columns: Iterable[int]) -> list[int]:
    """Return the first column, and those of the others that are not empty."""
    return [0, *(i for i in columns if any(text[i] for text in texts))]


def failures(rows: Sequence[Figures]) -> list[str]:
    """Write a line for each run that failed."""
    return [f"{row.name}: {error}" for row in rows for error in row.failed]


def markdown(comparison: Comparison, rows: Sequence[Figures], title: str, command: str) -> str:
    """Write the same table in Markdown, with what is needed to make it again."""
    texts, named = _texts(rows, comparison.seeds), columns(rows)
    shown = _shown(texts, range(1, len(named)))
    lines = [f"# {title}", ""]
    lines.append("| " + " | ".join(named[i] for i in shown) + " |")
    lines.append("|" + "---|" * len(shown))
    lines += [
        "| " + " | ".join(text[i].replace("|", "\\|") for i in shown) + " |" for text in texts
    ]
    for remark in remarks(rows):
        lines += ["", remark]
    lines += ["", MEANING, "", "NOT PRIVATE: samples and noise were drawn from seeds."]
    failed = failures(rows)
    if failed:
        lines += ["", "Failed:", "", *(f"- {line}" for line in failed)]
    tuned = [row for row in rows if row.tuned]
    if tuned:
        count = comparison.tuning_seeds
        other = "one seed that is" if count == 1 else f"mean of {count} seeds that are"
        lines += ["", f"Loss on the tuning records, {other} not reported:", ""]
        for row in tuned:
            tried = "; ".join(
                f"{', '.join(map(_short, settings))}: {'failed' if loss is None else f'{loss:.3f}'}"
                for settings, loss in row.tuned
            )
            lines.append(f"- {row.name}: {tried}")
    lines += ["", "![loss by round](compare.svg)", "", "```console", command, "```", ""]
    lines.append(f"fedpriv {__version__}.")
    return "\n".join(lines) + "\n"


def as_json(
    comparison: Comparison, rows: Sequence[Figures], baseline: str, command: str
) -> dict[str, Any]:
    """Return everything that the table says, for programs."""
    return {
        "format": 1,
        "fedpriv": __version__,
        "private": False,
        "command": command,
        "baseline": baseline,
        "seeds": comparison.seeds,
        "tuning_seeds": comparison.tuning_seeds,
        "inputs": {Path(name).name: digest for name, digest in comparison.inputs.items()},
        "rows": finite_json([row.as_dict() for row in rows]),
        "remarks": remarks(rows),
    }


def chart(rows: Sequence[Row]) -> str:
    """Draw the mean loss of each variant by round, as an SVG file."""
    lines = []
    for index, row in enumerate(rows):
        curves = [result.rounds for result in row.results if not result.error]
        points = [
            (float(at[0]["round"]), sum(one["eval_loss"] for one in at) / len(at))
            for at in zip(*curves, strict=False)
        ]
        points = [point for point in points if math.isfinite(point[1])]
        if row.variant.method in UNTRAINED and points:
            points = [points[0], (_last_round(rows), points[0][1])]
        if points:
            dashed = row.variant.method in UNTRAINED
            colour = f"series-{index % PALETTE}"
            lines.append(Line(_beside(row.variant.name), points, colour, dashed=dashed))
    if not lines:
        return ""
    svg = line_chart(
        "compare", lines, width=880, height=360, from_zero=False, description="Loss by round"
    )
    return standalone(svg)


def _beside(name: str) -> str:
    """Shorten a name to its beginning and its end, so that it leaves room for its line."""
    half = LABEL // 2
    return name if len(name) <= LABEL else f"{name[:half]}…{name[-half:]}"


def _last_round(rows: Sequence[Row]) -> float:
    results = [result for row in rows for result in row.results if result.rounds]
    return float(max(result.rounds[-1]["round"] for result in results))


def _settings(figures: Figures) -> str:
    edges = set(figures.at_the_edge)
    texts = [
        _short(setting) + ("*" if setting.partition("=")[0] in edges else "")
        for setting in figures.settings
    ]
    lost = sum(loss is None for _, loss in figures.tuned)
    return ", ".join(texts) + (f" ({lost} of {len(figures.tuned)} failed)" if lost else "")


def _short(setting: str) -> str:
    key, _, value = setting.partition("=")
    return f"{key.rpartition('.')[2]} {value}"


def _spread(spread: Spread | None, form: str) -> str:
    if spread is None:
        return ""
    plain = form.lstrip("+")
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:{plain}}"
    return f"{spread.mean:{form}}{deviation}"


def _reached(reached: Reached | None) -> str:
    if reached is None:
        return ""
    if reached.steps is None or reached.saved is None:
        return f"{reached.seeds} of {reached.of} seeds"
    return f"{reached.steps:.1f} ({reached.saved:+.0%})"
