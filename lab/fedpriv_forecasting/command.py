"""`fedpriv forecast`: its options, and in words what joining is expected to be worth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedpriv.report.figures import upper

if TYPE_CHECKING:
    from fedpriv.models.config import ModelSection
    from fedpriv_forecasting.advice import Forecast
    from fedpriv_forecasting.answers import Answer, Price
    from fedpriv_forecasting.curve import Interval
    from fedpriv_forecasting.federation import Federation

BASIS = (
    "What this assumes: your records and your model behave like those that were measured. Nobody"
    " knows that beforehand. The brackets answer another question: how far a curve is off."
)
ALL_SITES = 4  # of more sites, the smallest, the median and the largest are shown


def forecast(
    file: Annotated[Path, typer.Argument(help="The federation file.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Replace a value: privacy.epsilon=2.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            help="Declared units of sites without a size in the file, as over the network: 250, or"
            " NAME=250; may be repeated.",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="A table of measured runs, as benchmarks/joining.py writes it.",
            show_default="those that are shipped",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="The kind of measured records most like yours.",
            show_default="the nearest of the file's task",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Forecast, before any ε is spent, whether joining pays, and what would change it.

    It reads the file and a table of measured runs, and no record.
    """
    from fedpriv.doctor.studies import advice
    from fedpriv_forecasting.of_file import read_and_forecast

    job, federation, found = read_and_forecast(
        file, overrides or (), sizes=sizes or (), table=table, kind=kind
    )
    if as_json:
        print(json.dumps(asdict(found), indent=2, allow_nan=False))
    else:
        console = Console(highlight=False)
        show(job.model, job.lora.r, federation, found, console)
        for sentence in advice(job):
            console.print("\n" + sentence, markup=False)


def show(
    model: ModelSection, rank: int, federation: Federation, found: Forecast, console: Console
) -> None:
    """Print the facts, three answers and the price.

    Then print each way, site and possible change.
    """
    for name, value in _facts(model, rank, federation, found):
        console.print(f"{name:16}  {value}", soft_wrap=True, markup=False)
    for heading, said in _answers(found):
        console.print("\n" + heading, style="bold")
        console.print(said, markup=False)
    console.print("\nOwn patients, by way to use the adapter", style="bold")
    console.print(_ways(found))
    for sentence in _sentences(model, found):
        console.print("\n" + sentence, markup=False)
    console.print(f"\nBy site, {found.best}", style="bold")
    for line in _sites(found):
        console.print(line, soft_wrap=True, markup=False)
    if found.changes:
        console.print(f"\nWhat would change it, {found.best}", style="bold")
        console.print(_changes(found))
    for sentence in (*_remarks(found), BASIS):
        console.print("\n" + sentence, markup=False)


def _facts(
    model: ModelSection, rank: int, federation: Federation, found: Forecast
) -> Iterator[tuple[str, str]]:
    sizes = _range(federation.sizes, "d")
    yield "sites", f"{federation.sites}, with {sizes} units each to train on"
    epsilon = _range(federation.epsilons, "g")
    yield "ε", f"{epsilon} for each site, at δ = {federation.delta:g}"
    trust = "each site adds all of its noise (local)"
    if federation.max_colluding is not None:
        trust = f"a secure sum, of which {federation.max_colluding} may collude"
    yield "trust", trust
    yield "model", f"{model.name}, {model.task}, LoRA of rank {rank}"
    yield "plan", f"{federation.rounds} steps at a sample rate of {federation.sample_rate:g}"
    sigma = _range(found.noise_multipliers, ".4g")
    yield "noise multiplier", f"{sigma}; {found.noise:.3g} for each trained value, in clip norms"
    kinds = f" of {found.kinds} kinds" if found.kinds > 1 else ""
    yield "measured", f"{found.kind}: {found.says}; {found.settings} federations{kinds}"
    yield "measured with", f"{found.model}, {found.trained} trained values"


def _range(values: Sequence[float], form: str) -> str:
    low, high = format(min(values), form), format(max(values), form)
    return low if min(values) == max(values) else f"{low} to {high}"


def _ways(found: Forecast) -> Table:
    second = any(one.over_two is not None for one in found.ways)
    names = ["way", "over training alone", *(["over two own models"] if second else []), "joining"]
    columns = (Column(name, overflow="fold") for name in names)
    table = Table(*columns, box=None, pad_edge=False, header_style="")
    for one in found.ways:
        gains = [_interval(one.over_alone)]
        if second:
            gains.append("" if one.over_two is None else _interval(one.over_two))
        style = "bold" if one.way == found.best else None
        table.add_row(one.way, *gains, one.verdict or "no verdict", style=style)
    return table


def _answers(found: Forecast) -> Iterator[tuple[str, str]]:
    from fedpriv_forecasting.answers import STARTS
    from fedpriv_forecasting.table import OUTSIDE

    own, others = found.answers[0], found.answers[1:]
    yield "Own patients", _told(f"With {own.way}, over a model trained alone", {"": own})
    begins = "A new hospital that begins with the adapter", "Over one that begins with", False
    for heading, over, outside in (("Other hospitals' patients", "Over", True), begins):
        said = []
        for start, words in STARTS.items():
            of_start = {
                "" if outside else f"with {one.question} own records ": one
                for one in others
                if one.over == start and (one.question == OUTSIDE) == outside
            }
            if any(one.federations for one in of_start.values()):
                said.append(_told(f"{over} {words}", of_start))
        nothing = "This table has no such measurement: nothing is said of it."
        yield heading, " ".join(said) or nothing
    yield "The price", _price(found.price)


def _told(what: str, found: Mapping[str, Answer]) -> str:
    """Write answers in a sentence or two, each after its opening words."""
    said = "; ".join(f"{begins}{_answer(one)}" for begins, one in found.items())
    known = [one.left_out for one in found.values() if one.left_out is not None]
    runs, inside = sum(one.runs for one in known), sum(one.inside * one.runs for one in known)
    tested = "Too little was measured to test that on runs left out."
    if known:
        tested = f"Of {runs} measured runs that no curve had seen, {inside:.0f} were in brackets."
    return f"{what}: {said}. {tested}"


def _answer(one: Answer) -> str:
    if one.gain is not None:
        no = "no verdict, outside what was measured"
        return f"{f'joining {one.verdict}' if one.verdict else no}, {_interval(one.gain)}"
    if one.measured is None:
        return "not measured"
    least, most = one.measured
    many = "1 federation" if one.federations == 1 else f"{one.federations} federations"
    return f"no verdict, too little measured: {many}, which gained {least:+.3f} to {most:+.3f}"


def _price(price: Price) -> str:
    alone = "no finite ε" if price.epsilon_alone is None else f"ε = {upper(price.epsilon_alone)}"
    said = f"ε = {price.epsilon:g} at each site, and {alone} if all others work with the server."
    if price.megabytes is not None:
        said += f" About {price.megabytes:.3g} MB come to each site, and at most as many go back."
    return said


def _sentences(model: ModelSection, found: Forecast) -> Iterator[str]:
    unit = "token" if model.task == "causal-lm" else "record"
    yield (
        f"Gain is how much lower the loss is, in nats per {unit}. In brackets, where the mean over"
        " the sites of such a federation is in 90% of cases, with records and a model like those"
        " that were measured."
    )
    own = found.answers[0]
    if own.gain is not None and own.verdict is None:
        yield (
            "This is outside what was measured, so there is no verdict, and the gains are the"
            f" curve drawn further: {'; '.join(own.outside)}."
        )
    if found.two_own is not None:
        least, most = found.two_own
        yield (
            "What joining has to beat, too: two models of a site's own that answer together gained"
            f" {least:+.3f} to {most:+.3f} over one, wherever that was measured."
        )


def _sites(found: Forecast) -> Iterator[str]:
    ordered = sorted(found.of_sites, key=lambda site: site.size)
    few = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    shown = ordered if len(ordered) <= ALL_SITES else few
    names = max(len(site.name) for site in shown)
    for site in shown:
        own = [words for words in site.outside if words not in found.unlike]
        said = site.verdict or ": ".join(["no verdict", *(["; ".join(own)] if own else [])])
        yield f"{site.name:{names}}  {site.size:>6} units  {_interval(site.gain)}  {said}"
    if len(shown) < len(ordered):
        verdicts = Counter(site.verdict or "no verdict" for site in ordered)
        counted = ", ".join(f"{count} {said}" for said, count in verdicts.most_common())
        yield f"Of all {len(ordered)} sites: {counted}."
    yield "(A single site's luck comes on top, so its brackets are wider than those of the mean.)"


def _changes(found: Forecast) -> Table:
    figures = (Column(name, no_wrap=True) for name in ("σ", "gain", "more than now, 90%"))
    what = Column("", overflow="fold")
    table = Table(what, *figures, box=None, pad_edge=False, header_style="")
    for one in found.changes:
        mark = "*" if one.outside else ""
        more = f"{one.more.gain:+.3f} ± {one.more.high - one.more.gain:.3f}"
        sigma = f"{one.noise_multiplier:.4g}"
        table.add_row(one.what + mark, sigma, _interval(one.gain), more)
    return table


def _remarks(found: Forecast) -> Iterator[str]:
    yield from dict.fromkeys(words for one in found.answers for words in one.widened)
    known = found.answers[0].outside
    others = (words for one in found.answers for words in one.outside if words not in known)
    if said := "; ".join(dict.fromkeys(others)):
        yield f"Other hospitals' patients are outside what was measured, too: {said}."
    if found.unlike:
        yield "All of it is outside what was measured: " + "; ".join(found.unlike) + "."
    for one in found.changes:
        own = [words for words in one.outside if words not in found.unlike]
        if own:
            yield f"* {one.what}: outside what was measured; {'; '.join(own)}."
    yield (
        "What public records of the same kind would change (synthetic.warm_start) can't be told by"
        " this table. Where it was measured, they were worth more than joining, and after them"
        " joining was worth next to nothing (documentation, 'Beginning with public notes')."
    )


def _interval(found: Interval) -> str:
    return f"{found.gain:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
