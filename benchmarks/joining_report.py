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
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.accounting.shares import alone
from fedpriv.privacy.usual import clip_norm_of
from fedpriv_forecasting.table import SHIPPED

Entry = Mapping[str, Any]  # a measured point, with one seed
Point = Sequence[Entry]  # all seeds of it
Losses = Callable[[Entry], Mapping[str, list[float]]]  # of an entry, by row
KEYS = ("kind", "sites", "records", "trust", "epsilon")
LEVEL = 0.01  # of loss; smaller differences count as level
OWN = ("alone", "alone+alone")  # what a site has without joining
JOINED = ("federated+personal", "federated+both")
STARTS = ("base", "single", "warm-start")  # where a new site can begin without a federation
COUNTS = ("0", "4", "16", "64")
MARK = "<!-- {}: python benchmarks/joining.py DATA --tables -->"


def measured(folder: Path) -> list[Point]:
    """Read the points in a folder, in the order of their kinds and sizes."""
    found: dict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for path in sorted(folder.glob("*-[0-9]*x[0-9]*-*-[0-9].json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        found[tuple(entry[key] for key in KEYS)].append(entry)
    return [found[key] for key in sorted(found)]


def verdict(gains: Sequence[float]) -> str:
    """Say whether something pays, from its gain at each site with each seed."""
    mean, better = statistics.fmean(gains), sum(gain > 0 for gain in gains)
    if abs(mean) < LEVEL:
        return f"level ({mean:+.3f})"
    if 0 < better < len(gains):
        return f"mixed ({mean:+.3f}, better at {better} of {len(gains)})"
    return f"**pays** ({mean:+.3f})" if mean > 0 else f"does not ({mean:+.3f})"


def of(point: Point, losses: Losses, row: str) -> str:
    """Write a row's mean over sites and seeds, or nothing where it was not measured."""
    found = [loss for entry in point for loss in losses(entry).get(row, [])]
    return f"{statistics.fmean(found):.3f}" if found else ""


def best(point: Point, losses: Losses, rows: Sequence[str]) -> str:
    """Return the row with the lowest mean."""
    known = [row for row in rows if row in losses(point[0])]
    return min(known, key=lambda row: float(of(point, losses, row)))


def gains(point: Point, losses: Losses, row: str, other: str) -> list[float]:
    """Return by how much a row's loss is lower than another's, at each site with each seed."""
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


def _of_few(count: str) -> Losses:
    """Return a function that reads a new site's losses with `count` own records."""
    return lambda entry: {row: of[count] for row, of in entry["new"].items() if count in of}


def map_table(points: Sequence[Point]) -> list[list[str]]:
    """Make the table of whether joining pays, for each point and question."""
    questions: list[tuple[str, Losses, Sequence[str], Sequence[str]]] = [
        ("own patients", itemgetter("own"), JOINED, OWN),
        ("other hospitals' patients", itemgetter("outside"), ("federated",), ("single",)),
        *(
            (f"a new hospital, {count} records", _of_few(count), ("federated",), STARTS)
            for count in ("16", "64")
        ),
    ]
    rows = [["records, sites × records", "trust, ε", *(name for name, *_ in questions)]]
    for point in points:
        said = [
            verdict(gains(point, losses, best(point, losses, ours), best(point, losses, theirs)))
            for _, losses, ours, theirs in questions
        ]
        rows.append([*_terms(point), *said])
    return rows


def price_table(points: Sequence[Point]) -> list[list[str]]:
    """Make the table of what a site pays: privacy, traffic and work."""
    rows = [
        [
            "records, sites × records",
            "trust, ε",
            "noise multiplier",
            "ε alone",
            "of the other sites, those that may work with the server",
            "MB that a site sends",
            "record gradients that a site computes",
        ]
    ]
    for point in points:
        one = point[0]
        sites, colluding, rounds = one["sites"], one["max_colluding"], one["rounds"]
        event = Event(one["sample_rate"], one["noise_multiplier"], rounds)
        others = sites - 1 if colluding is None else colluding
        cost = one["epsilon"]
        if colluding is not None:
            cost = alone(event, one["delta"], sites, colluding).epsilon
        drawn = rounds * one["sample_rate"] * one["records"]
        sent = one["bytes_up"] / sites / 1e6
        figures = [f"{one['noise_multiplier']:g}", f"{cost:.3g}", f"{others} of {sites - 1}"]
        rows.append([*_terms(point), *figures, f"{sent:.1f}", f"{drawn:,.0f}"])
    return rows


def own_table(points: Sequence[Point]) -> list[list[str]]:
    """Make the table of a site's own patients."""
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
    """Make the table of patients of sites that took no part."""
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
    """Make the table of new sites: trained on few records of their own, from each start."""
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
            losses = _of_few(count)
            said = gains(point, losses, "federated", best(point, losses, STARTS))
            shown = (*STARTS, "federated")
            terms = _terms(point) if count == COUNTS[0] else ["", ""]
            rows.append([*terms, count, *(of(point, losses, row) for row in shown), verdict(said)])
    return rows


def chosen_table(folder: Path) -> list[list[str]]:
    """Make the table of what was chosen, and from what. A * marks the end of a grid."""
    rows = [
        [
            "records, sites × records",
            "rate, federation",
            "rate, single hospital",
            "own training, each scored site: rate × passes",
            "the same from the federation's adapter",
        ]
    ]
    for path in sorted((folder / "tuned").glob("*.json")):
        kind, _, size = path.stem.rpartition("-")
        found = json.loads(path.read_text(encoding="utf-8"))
        sites_own = [both for name, both in found["own"].items() if name.startswith("site-")]
        if not sites_own:  # not measured yet
            continue
        own = [
            "; ".join(_epochs(KINDS[kind], epochs) for epochs in of_all)
            for of_all in zip(*sites_own, strict=True)
        ]
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
    return f"{rate:g}{of_rates} × {passes}{end}"


TABLES = {
    "joining-own-patients": own_table,
    "joining-other-hospitals": others_table,
    "joining-new-hospitals": new_table,
    "joining": map_table,
}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    head, *others = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in others)])


def with_tables(folder: Path) -> Iterator[tuple[Path, str]]:
    """Give the pages beside a folder of figures, each with its table renewed.

    Raises:
        DataError: a page has no place for the table.
    """
    points = measured(folder)
    for name, made in TABLES.items():
        path = folder.parent / f"{name}.md"
        text = _replaced(path.read_text(encoding="utf-8"), "table", made(points), path)
        if name == "joining":
            text = _replaced(text, "price", price_table(points), path)
            text = _replaced(text, "choices", chosen_table(folder), path)
        yield path, text


def _replaced(text: str, name: str, rows: Sequence[Sequence[str]], path: Path) -> str:
    begin, end = MARK.format(name), MARK.format(f"end of {name}")
    if begin not in text or end not in text:
        raise DataError("has no place for its table", file=path, fix=f"Add {begin} and {end}.")
    return f"{text.split(begin)[0]}{begin}\n\n{markdown(rows)}\n\n{end}{text.split(end)[1]}"


def forecast_table(folder: Path) -> dict[str, Any]:
    """Return all points in the form that `fedpriv forecast --table` reads."""
    points = [entry for point in measured(folder) for entry in point]
    kinds = {}
    for entry in points:
        kind = KINDS[entry["kind"]]
        settings = tomllib.loads(kind.settings)
        model, lora = settings["model"], settings["lora"]
        labels = model["task"] == "classification"
        chosen = min((folder / "tuned").glob(f"{kind.name}-*.json"))
        losses = json.loads(chosen.read_text(encoding="utf-8"))["federation"]
        kinds[kind.name] = {
            "says": kind.says,
            "task": model["task"],
            "model": "all-MiniLM-L6-v2" if model["name"] == "{model}" else model["name"],
            "trained": entry["trained"],
            "tokens": model["max_length"],
            "settings": {
                "lora.r": lora["r"],
                "lora.alpha": lora["alpha"],
                "lora.target_modules": lora["target_modules"],
                "model.labels": model.get("labels", []),
                "model.pooling": model.get("pooling", "own"),
                "privacy.clip_norm": clip_norm_of(labels=labels),
                "privacy.unit": kind.unit,
                "optimizer.lr": float(min(losses, key=losses.get)),
            },
        }
    return {"format": 1, "kinds": kinds, "points": points}


def shipped_table(folder: Path) -> dict[str, Any]:
    """Join these points and the border's for the shipped table. Each kind has its own name."""
    border = json.loads((folder.parent / "border.json").read_text(encoding="utf-8"))
    here = forecast_table(folder)
    kinds = {f"hospital-{name}": kind for name, kind in here["kinds"].items()}
    points = [{**entry, "kind": f"hospital-{entry['kind']}"} for entry in here["points"]]
    return {
        "format": 1,
        "kinds": {**border["kinds"], **kinds},
        "points": [*border["points"], *points],
    }


def write_tables(folder: Path) -> None:
    """Write the tables of all pages again, and the tables that forecasts read."""
    for path, text in with_tables(folder):
        write_atomic(path, text)
    write_json(folder / "table.json", forecast_table(folder))
    write_json(SHIPPED, shipped_table(folder))
