"""Show a comparison as a table for the terminal, as Markdown, as JSON, and as a chart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedpriv import __version__
from fedpriv.files import finite_json
from fedpriv.report.charts import PALETTE, Line, line_chart, standalone
from fedpriv.report.figures import amount, upper
from fedpriv_comparison.comparison import Comparison, Row
from fedpriv_comparison.figures import AtHome, Figures, Spread, outside_in_words
from fedpriv_comparison.variants import UNTRAINED

GOOD = ("settings", "loss", "Δ", "accuracy", "AUC")
HOME = ("own loss", "Δ alone", "pays", "worst site", "own accuracy", "own AUC")
COST = ("ε", "up", "s")
LABEL = 40  # letters of a name beside its line in the chart
MEANING = (
    "loss, accuracy, AUC: on the reported records after the last round, mean ± deviation over the"
    " seeds. Δ: of the losses of equal seeds, against the baseline. own: on each site's own"
    " held-out records, mean over the sites. Δ alone: of the own losses of equal seeds, against"
    " each site alone without noise."
    " pays: share of the sites that do better than alone and than base, by more than the last"
    " digit shown; and whether all of them do on the mean, by an interval of 90% over the sites."
    " `fedpriv simulate --personal` compares with two own models that answer together, which are"
    " better than one."
    " outside: the loss at sites that took no part, mean over these; new N: the same of a new site"
    " there that trained further on N units of its own. A model that each site trained alone is the"
    " one that is best there on other records. not sure: an interval of 90% over the outside sites"
    " allows both."
    " up: sent by all sites in a run. s: seconds of a run's rounds. * the best setting is at the"
    " end of its grid: better ones may lie beyond."
)


def _parts(rows: Sequence[Figures]) -> dict[str, Sequence[str]]:
    """Return for each table of the terminal its title → its columns, besides the method."""
    counts = next((row.outside.loss for row in rows if row.outside is not None), ())
    return {
        "How good": GOOD,
        "How good for each site's own people": HOME,
        "How good for outside sites": [_new(count) for count in counts],
        "At what cost": COST,
    }


def _new(count: str) -> str:
    return "outside" if count == "0" else f"new {count}"


def _cells(figures: Figures, seeds: int) -> dict[str, str]:
    """Write a row of the table as text, by column. Columns that are left out are empty."""
    scores = figures.scores
    if not scores:
        first = figures.failed[0] if figures.failed else "not run"
        return {"method": figures.name, "settings": f"failed: {first}"}
    losses = {} if figures.outside is None else figures.outside.loss
    missing = f" ({figures.runs} of {seeds} runs)" if figures.runs < seeds else ""
    return {
        "method": figures.name,
        "settings": _settings(figures),
        "loss": _spread(scores.get("eval_loss"), ".3f") + missing,
        "Δ": _spread(figures.difference, "+.3f"),
        "accuracy": _spread(scores.get("eval_accuracy"), ".1%"),
        "AUC": _spread(scores.get("eval_auc"), ".3f"),
        **({} if figures.home is None else _home(figures.home)),
        **{_new(count): _spread(loss, ".3f") for count, loss in losses.items()},
        "ε": "" if figures.epsilon is None else upper(figures.epsilon),
        "up": amount(figures.bytes_up) if figures.bytes_up else "",
        "s": f"{figures.seconds:.0f}",
    }


def _home(home: AtHome) -> dict[str, str]:
    """Write the cells of `HOME`."""
    pays = [] if home.pays is None else [f"{home.pays.mean:.0%}", home.verdict or ""]
    return {
        "own loss": _spread(home.loss, ".3f"),
        "Δ alone": _spread(home.difference, "+.3f"),
        "pays": ", ".join(filter(None, pays)),
        "worst site": _spread(home.worst, ".3f"),
        "own accuracy": _spread(home.accuracy, ".1%"),
        "own AUC": _spread(home.auc, ".3f"),
    }


def remarks(rows: Sequence[Figures]) -> list[str]:
    """Write what else a reader of the table needs to know."""
    found = []
    if risen := [row.name for row in rows if row.worse]:
        found.append(
            f"Worse than before training: {', '.join(risen)}. Use the base model as it is, or try a"
            " lower learning rate, fewer rounds or more records."
        )
    return [*found, *outside_in_words(rows)]


def tables(rows: Sequence[Figures], seeds: int) -> list[Table]:
    """Make the terminal's tables, without empty columns: how good, and at what cost."""
    texts, found = [_cells(row, seeds) for row in rows], []
    for title, part in _parts(rows).items():
        shown = _shown(texts, part)
        if part in (GOOD, COST) or len(shown) > 1:
            made = Table(*shown, title=title, title_justify="left")
            for text in texts:
                made.add_row(*(Text(text.get(name, "")) for name in shown))
            found.append(made)
    return found


def _shown(texts: Sequence[Mapping[str, str]], columns: Iterable[str]) -> list[str]:
    """Return the method's column, and those other columns that are not empty."""
    return ["method", *(name for name in columns if any(text.get(name) for text in texts))]


def failures(rows: Sequence[Figures]) -> list[str]:
    """Write a line for each run that failed."""
    return [f"{row.name}: {error}" for row in rows for error in row.failed]


def markdown(comparison: Comparison, rows: Sequence[Figures], title: str, command: str) -> str:
    """Write the same table in Markdown, with what is needed to make it again."""
    texts = [_cells(row, comparison.seeds) for row in rows]
    shown = _shown(texts, itertools.chain(*_parts(rows).values()))
    lines = [f"# {title}", "", f"| {' | '.join(shown)} |", "|" + "---|" * len(shown)]
    for text in texts:
        cells = (text.get(name, "").replace("|", "\\|") for name in shown)
        lines.append(f"| {' | '.join(cells)} |")
    for remark in remarks(rows):
        lines += ["", remark]
    lines += ["", MEANING, "", "NOT PRIVATE: samples and noise were drawn from seeds."]
    if failed := failures(rows):
        lines += ["", "Failed:", "", *(f"- {line}" for line in failed)]
    if tuned := [row for row in rows if row.tuned]:
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
        "rows": finite_json(list(map(asdict, rows))),
        "remarks": remarks(rows),
    }


def chart(rows: Sequence[Row]) -> str:
    """Draw the mean loss of each variant by round, as an SVG file."""
    lines = []
    ends = [one.rounds[-1]["round"] for row in rows for one in row.results if one.rounds]
    for index, row in enumerate(rows):
        curves = [result.rounds for result in row.results if not result.error]
        points = [
            (float(at[0]["round"]), sum(one["eval_loss"] for one in at) / len(at))
            for at in zip(*curves, strict=False)
        ]
        points = [point for point in points if math.isfinite(point[1])]
        if points:
            dashed, colour = row.variant.method in UNTRAINED, f"series-{index % PALETTE}"
            if dashed:
                points = [points[0], (float(max(ends)), points[0][1])]
            lines.append(Line(_beside(row.variant.name), points, colour, dashed=dashed))
    if not lines:
        return ""
    svg = line_chart(
        "compare", lines, width=880, height=360, from_zero=False, description="Loss by round"
    )
    return standalone(svg)


def _beside(name: str) -> str:
    """Shorten a name to its beginning and its end, so that its line in the chart has room."""
    half = LABEL // 2
    return name if len(name) <= LABEL else f"{name[:half]}…{name[-half:]}"


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
