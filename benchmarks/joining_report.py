"""The tables of `benchmarks/joining.py`, in the pages that show them."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from joining_data import KINDS, Kind

from fedpriv.errors import DataError
from fedpriv.files import write_atomic, write_json
from fedpriv.privacy.usual import clip_norm_of

Entry = Mapping[str, Any]  # a measured point, with one seed
Point = Sequence[Entry]  # all seeds of it
Losses = Callable[[Entry], Mapping[str, list[float]]]  # of an entry, by row
KEYS = ("kind", "sites", "records", "trust", "epsilon")
LEVEL = 0.01  # of loss: less is level
OWN = ("alone", "alone+alone")  # what a site has without anybody
JOINED = ("federated+personal", "federated+both")
STARTS = ("base", "single", "warm-start")  # what a new site begins at without a federation
COUNTS = ("0", "4", "16", "64")
MARK = "<!-- {}: python benchmarks/joining.py DATA --tables -->"


def measured(folder: Path) -> list[Point]:
    """The points in a folder, in the order of their kinds and sizes."""
    found: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for path in sorted(folder.glob("*-[0-9]*x[0-9]*-*-[0-9].json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        found[tuple(entry[key] for key in KEYS)].append(entry)
    return [found[key] for key in sorted(found)]


def verdict(gains: Sequence[float]) -> str:
    """Whether something pays, by what it gains at each site with each seed."""
    mean = statistics.fmean(gains)
    if abs(mean) < LEVEL or not (min(gains) > 0 or max(gains) < 0):
        return f"level ({mean:+.3f})"
    return f"**pays** ({mean:+.3f})" if mean > 0 else f"does not ({mean:+.3f})"


def of(point: Point, losses: Losses, row: str) -> str:
    """A row's mean over sites and seeds; nothing where it was not measured."""
    found = [loss for entry in point for loss in losses(entry).get(row, [])]
    return f"{statistics.fmean(found):.3f}" if found else ""


def best(point: Point, losses: Losses, rows: Sequence[str]) -> str:
    """The row with the lowest mean."""
    known = [row for row in rows if row in losses(point[0])]
    return min(known, key=lambda row: float(of(point, losses, row)))


def gains(point: Point, losses: Losses, row: str, other: str) -> list[float]:
    """By how much a row's loss is lower than another's, at each site with each seed."""
    return [
        theirs - mine
        for entry in point
        for mine, theirs in zip(losses(entry)[row], losses(entry)[other], strict=True)
    ]


def _terms(point: Point) -> list[str]:
    first = point[0]
    seeds = f", {len(point)} seeds" if len(point) > 1 else ""
    size = f"{first['sites']} × {first['records']:,}"
    return [
        f"{first['kind']}, {size}{seeds}",
        f"{first['trust'].replace('-', ' ')}, {first['epsilon']:g}",
    ]


def own_table(points: Sequence[Point]) -> list[list[str]]:
    """A site's own patients."""
    losses: Losses = itemgetter("own")
    rows = [
        [
            "records, sites × records",
            "trust, ε",
            "base",
            "alone",
            "two own",
            "federation's",
            "trained further",
            "all three",
            "does joining pay?",
        ]
    ]
    for point in points:
        shown = ("base", *OWN, "federated", *JOINED)
        said = gains(point, losses, best(point, losses, JOINED), best(point, losses, OWN))
        rows.append([*_terms(point), *(of(point, losses, row) for row in shown), verdict(said)])
    return rows


def others_table(points: Sequence[Point]) -> list[list[str]]:
    """Patients of sites that took no part."""
    losses: Losses = itemgetter("outside")
    rows = [
        [
            "records, sites × records",
            "trust, ε",
            "base",
            "best single hospital",
            "200 public records",
            "federation's",
            "without noise",
            "against a single hospital",
            "against public records",
        ]
    ]
    for point in points:
        shown = ("base", "single", "warm-start", "federated", "lora")
        said = [verdict(gains(point, losses, "federated", row)) for row in ("single", "warm-start")]
        rows.append([*_terms(point), *(of(point, losses, row) for row in shown), *said])
    return rows


def new_table(points: Sequence[Point]) -> list[list[str]]:
    """New sites: what is trained on few records of their own, from each start."""
    rows = [
        [
            "records, sites × records",
            "trust, ε",
            "own records",
            "from the base",
            "from a single hospital's",
            "from public records",
            "from the federation's",
            "does the federation pay?",
        ]
    ]
    for point in points:
        for count in COUNTS:

            def losses(entry: Entry, count: str = count) -> Mapping[str, list[float]]:
                return {
                    name: found[count] for name, found in entry["new"].items() if count in found
                }

            said = gains(point, losses, "federated", best(point, losses, STARTS))
            shown = (*STARTS, "federated")
            terms = _terms(point) if count == COUNTS[0] else ["", ""]
            rows.append([*terms, count, *(of(point, losses, row) for row in shown), verdict(said)])
    return rows


def chosen_table(folder: Path) -> list[list[str]]:
    """What was chosen, and from what; * marks the end of a grid."""
    rows = [
        [
            "records, sites × records",
            "rate, federation",
            "rate, single hospital",
            "own training: rate × passes",
            "the same from the federation's adapter",
        ]
    ]
    for path in sorted((folder / "tuned").glob("*.json")):
        kind, _, size = path.stem.rpartition("-")
        found = json.loads(path.read_text(encoding="utf-8"))
        own = [_epochs(KINDS[kind], epochs) for epochs in found["own"]["all"]]
        sites, records = size.split("x")
        rates = [_rate(found[who]) for who in ("federation", "single")]
        rows.append([f"{kind}, {sites} × {int(records):,}", *rates, *own])
    return rows


def _rate(losses: Mapping[str, float]) -> str:
    tried, best = sorted(losses, key=float), min(losses, key=lambda rate: losses[rate])
    end = "\\*" if best in (tried[0], tried[-1]) else ""
    return f"{float(best):g}{end} of {', '.join(tried)}"


def _epochs(kind: Kind, epochs: tuple[float, int]) -> str:
    rate, passes = epochs
    if not passes:
        return "none"
    ends = (kind.own_rates[0], kind.own_rates[-1])
    of_rates = "\\*" if rate in ends and len(kind.own_rates) > 1 else ""
    end = "\\*" if passes == kind.own_passes else ""
    return (
        f"{rate:g}{of_rates} × {passes}{end} of {', '.join(f'{one:g}' for one in kind.own_rates)}"
    )


TABLES = {"own-patients": own_table, "other-hospitals": others_table, "new-hospitals": new_table}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    head, *others = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in others)])


def with_tables(folder: Path) -> Iterator[tuple[Path, str]]:
    """The pages beside a folder of figures, each with its table anew.

    Raises:
        DataError: a page has no place for it.
    """
    points = measured(folder)
    for name, made in TABLES.items():
        path = folder.parent / f"joining-{name}.md"
        text = _replaced(path.read_text(encoding="utf-8"), "table", made(points), path)
        if name == "own-patients":
            text = _replaced(text, "choices", chosen_table(folder), path)
        yield path, text


def _replaced(text: str, name: str, rows: Sequence[Sequence[str]], path: Path) -> str:
    begin, end = MARK.format(name), MARK.format(f"end of {name}")
    if begin not in text or end not in text:
        raise DataError("has no place for its table", file=path, fix=f"Add {begin} and {end}.")
    return f"{text.split(begin)[0]}{begin}\n\n{markdown(rows)}\n\n{end}{text.split(end)[1]}"


def forecast_table(folder: Path) -> dict[str, Any]:
    """All points, as `fedpriv forecast --table` reads them."""
    points = [entry for point in measured(folder) for entry in point]
    kinds = {}
    for entry in points:
        kind = KINDS[entry["kind"]]
        settings = tomllib.loads(kind.settings)
        model, lora = settings["model"], settings["lora"]
        labels = model["task"] == "classification"
        kinds[kind.name] = {
            "says": kind.says,
            "task": model["task"],
            "model": "all-MiniLM-L6-v2" if model["name"] == "{model}" else model["name"],
            "trained": entry["trained"],
            "tokens": model["max_length"],
            "settings": {
                "lora.r": lora["r"],
                "lora.target_modules": lora["target_modules"],
                "privacy.clip_norm": clip_norm_of(labels=labels),
                "privacy.unit": kind.unit,
            },
        }
    return {"format": 1, "kinds": kinds, "points": points}


def write_tables(folder: Path) -> None:
    """Write the tables of all pages anew, and the one that forecasts read."""
    for path, text in with_tables(folder):
        write_atomic(path, text)
    write_json(folder / "table.json", forecast_table(folder))
