"""`fedpriv forecast`: its options, and in words what joining is expected to be worth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from fedpriv.config.job import JobConfig
    from fedpriv.forecasting.advice import Forecast, OfSite
    from fedpriv.forecasting.curve import Interval
    from fedpriv.forecasting.federation import Federation
    from fedpriv.forecasting.validation import LeftOut

ALL_SITES = 4  # of more, the smallest, the median and the largest are shown


def forecast(
    file: Annotated[Path, typer.Argument(help="Federation file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key, such as privacy.epsilon=2.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            help="Declared units of the sites for which the file has none, as over the network:"
            " 250, or NAME=250; may be repeated.",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Measured runs, as benchmarks/border.py writes them.",
            show_default="those that are shipped",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="The kind of measured records that yours are like.",
            show_default="the nearest of the file's task",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Tell before any ε is spent whether joining is expected to pay, and what would change it.

    Reads the file and a table of measured runs, and no record.
    """
    from fedpriv.config.load import load_job
    from fedpriv.forecasting.federation import federation_of
    from fedpriv.forecasting.of_file import forecast as expected

    given = sizes or ()
    found = expected(file, overrides or (), sizes=given, table=table, kind=kind)
    if as_json:
        print(json.dumps(asdict(found), indent=2, allow_nan=False))
    else:
        job = load_job(file, overrides or ())
        show(job, federation_of(job, given), found, Console(highlight=False))


def show(job: JobConfig, federation: Federation, found: Forecast, console: Console) -> None:
    """The facts, what is expected, of whom, and what would change it."""
    for name, value in _facts(job, federation, found):
        console.print(f"{name:16}  {value}", soft_wrap=True, markup=False)
    console.print("\nExpected gain of a typical site", style="bold")
    console.print(_ways(found))
    for sentence in _sentences(found):
        console.print("\n" + sentence, markup=False)
    console.print(f"\nBy site, {found.best}", style="bold")
    for line in _sites(found.of_sites, found.unlike):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"\nWhat would change it, {found.best}", style="bold")
    console.print(_changes(found))
    for sentence in (*_remarks(found), _basis(found)):
        console.print("\n" + sentence, markup=False)


def _facts(job: JobConfig, federation: Federation, found: Forecast) -> Iterator[tuple[str, str]]:
    smallest, largest = min(federation.sizes), max(federation.sizes)
    sizes = f"{smallest}" if smallest == largest else f"{smallest} to {largest}"
    yield "sites", f"{federation.sites}, with {sizes} units each to train on"
    low, high = min(federation.epsilons), max(federation.epsilons)
    epsilon = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    yield "ε", f"{epsilon} for each site, at δ = {federation.delta:g}"
    trust = "each site adds all of its noise (local)"
    if federation.max_colluding is not None:
        trust = f"a secure sum, of which {federation.max_colluding} may collude"
    yield "trust", trust
    yield "model", f"{job.model.name}, {job.model.task}, LoRA of rank {job.lora.r}"
    yield "plan", f"{federation.rounds} steps at a sample rate of {federation.sample_rate:g}"
    least, most = found.noise_multipliers
    sigma = f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"
    yield "noise multiplier", f"{sigma}; {found.noise:.3g} for each trained value, in clip norms"
    yield "measured", f"{found.kind}: {found.says} ({found.settings} federations)"


def _ways(found: Forecast) -> Table:
    second = any(one.over_two is not None for one in found.ways)
    table = Table(box=None, pad_edge=False, header_style="")
    columns = ("way", "over training alone", *(["over two own models"] if second else []))
    for column in (*columns, "joining"):
        table.add_column(column, overflow="fold")
    for one in found.ways:
        gains = [_interval(one.over_alone)]
        if second:
            gains.append("" if one.over_two is None else _interval(one.over_two))
        style = "bold" if one.way == found.best else None
        table.add_row(one.way, *gains, one.verdict or "no verdict", style=style)
    return table


def _sentences(found: Forecast) -> list[str]:
    from fedpriv.forecasting.advice import UNKNOWN

    best = next(one for one in found.ways if one.way == found.best)
    near = found.near
    first = f"With {best.way}, joining {best.verdict}."
    if best.verdict is None:
        where = "; ".join(best.outside)
        first = f"This is outside what was measured, so there is no verdict: {where}."
    elif best.verdict == UNKNOWN:
        first = f"Whether joining pays {UNKNOWN}, not even with {best.way}."
    own = []
    if found.two_own is not None:
        least, most = found.two_own
        own = [
            f"What joining has to beat, too: two models of a site's own that answer together gained"
            f" {least:+.3f} to {most:+.3f} over one, wherever that was measured."
        ]
    return [
        "Gain is how much lower the loss on own patients is; in brackets, where it is in 90% of"
        " cases.",
        first,
        *own,
        f"The nearest federation that was measured has {near.sites} sites of {near.records}"
        f" records, ε = {near.epsilon:g} and trust {near.trust}; there {near.gained:.0%} of the"
        f" sites gained with {found.best}.",
    ]


def _sites(sites: Sequence[OfSite], unlike: Sequence[str]) -> Iterator[str]:
    ordered = sorted(sites, key=lambda site: site.size)
    shown = ordered
    if len(ordered) > ALL_SITES:
        shown = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    names = max(len(site.name) for site in shown)
    for site in shown:
        own = [words for words in site.outside if words not in unlike]
        said = site.verdict or ": ".join(["no verdict", *(["; ".join(own)] if own else [])])
        yield f"{site.name:{names}}  {site.size:>6} units  {_interval(site.gain)}  {said}"
    if len(shown) < len(ordered):
        from fedpriv.forecasting.advice import by_verdict

        counted = ", ".join(
            f"{count} {verdict or 'no verdict'}"
            for verdict, count in by_verdict(ordered).most_common()
        )
        yield f"Of all {len(ordered)} sites: {counted}."


def _changes(found: Forecast) -> Table:
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("", overflow="fold")
    for column in ("σ", "gain", "more than now"):
        table.add_column(column, no_wrap=True)
    for one in found.changes:
        mark = "*" if one.outside else ""
        more = f"{one.more.gain:+.3f} ± {one.more.high - one.more.gain:.3f}"
        sigma = f"{one.noise_multiplier:.4g}"
        table.add_row(one.what + mark, sigma, _interval(one.gain), more)
    return table


def _remarks(found: Forecast) -> Iterator[str]:
    if found.unlike:
        yield "All of it is outside what was measured: " + "; ".join(found.unlike) + "."
    for one in found.changes:
        if one.outside:
            yield f"* {one.what}: outside what was measured; {'; '.join(one.outside)}."
    if not found.warm_start_measured:
        yield (
            "What a public warm start would change is not in this table. Of one federation the"
            " documentation says, under 'Beginning with public notes', that public records of the"
            " same kind are worth more than joining, and joining next to nothing after them."
        )


def _interval(found: Interval) -> str:
    return f"{found.gain:+.3f} ({found.low:+.3f} to {found.high:+.3f})"


def _basis(found: Forecast) -> str:
    return (
        f"What this assumes: your records and your model behave as those that were measured"
        f" ({found.trained} trained values). Nobody knows that before; it is another question than"
        f" how far a curve is off, which the brackets answer. {_left_out(found.left_out)}"
    )


def _left_out(found: dict[str, LeftOut | None]) -> str:
    known = [one for one in found.values() if one is not None]
    if not known:
        return "There are too few measured federations to test the curves on what they left out."
    runs = sum(one.runs for one in known)
    inside = sum(one.inside * one.runs for one in known) / runs
    return (
        f"Tested on measured federations that a curve had not seen, {inside:.0%} of {runs} gains"
        " were in the brackets."
    )
