"""`fedpriv ledger …`: make a site's ledger, look at it, check it, close jobs, hand it out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedpriv.errors import ConfigError
from fedpriv.privacy import usual
from fedpriv.report.figures import upper

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.chain import Head
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.privacy.ledger.rules import Rule

app = typer.Typer(no_args_is_help=True, help="A site's ledger: its budget, kept by itself.")
LedgerPath = Annotated[Path, typer.Argument(help="The ledger's file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
WitnessPath = Annotated[
    Path | None, typer.Option("--witness", help="File on another disk, told of every row.")
]
SeenHead = Annotated[str, typer.Option("--head", help="A head seen before, as ROWS:HASH.")]
ElsewhereReport = Annotated[
    Path | None,
    typer.Option("--report", help="Newest budget.json of this ledger that somebody else keeps."),
]


@app.command()
def init(
    path: LedgerPath,
    size: Annotated[int, typer.Option(help="Units in the population, as you state it.", min=1)],
    epsilon: Annotated[float, typer.Option(help="ε that its people have for life.")],
    epsilon_alone: Annotated[
        float | None,
        typer.Option(
            help="ε for life if every other site in a secure sum and the server work together;"
            " without it, this ledger pays for no secure sum."
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ of the claim, below 1 / size.")] = usual.DELTA,
    unit: Annotated[str, typer.Option(help="record, or the id column of a person.")] = usual.UNIT,
    max_records_per_unit: Annotated[
        int, typer.Option(help="Records of a unit in a step, at most.", min=1)
    ] = usual.MAX_RECORDS_PER_UNIT,
    rule: Annotated[
        str,
        typer.Option(
            help="How plans add up, fixed for life: rdp, plan or sum (docs/explanation/privacy.md)."
        ),
    ] = "rdp",
    order: Annotated[int | None, typer.Option(help="rdp: α of the filter.")] = None,
    plans: Annotated[int | None, typer.Option(help="sum: plans that share δ.", min=1)] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="For fedpriv simulate, never for the network.")
    ] = False,
    witness: WitnessPath = None,
) -> None:
    """Make the ledger of a population, once. Of its terms only size and δ can change: `grow`."""
    from fedpriv.privacy.ledger.ledger import Ledger, Terms
    from fedpriv.privacy.ledger.terms import new_dataset_id

    terms = Terms(
        dataset_id=new_dataset_id(),
        declared_size=size,
        unit=unit,
        max_records_per_unit=max_records_per_unit,
        delta=delta,
        budget=epsilon,
        simulated=simulated,
        rule=_rule(rule, {"order": order, "plans": plans}, epsilon, delta, epsilon_alone),
        budget_alone=epsilon_alone,
    )
    with Ledger.create(path, terms, witness) as ledger:
        print(
            f"Made {path} for population {terms.dataset_id}, {size} units by {unit!r}:"
            f" ε = {epsilon:g}{_and_alone(epsilon_alone)} at δ = {delta:g} for life, rule"
            f" {rule!r}.\n"
            f"Head {ledger.head.hash} at row 1."
        )


def _and_alone(epsilon: float | None) -> str:
    """Return the words on the second budget, to follow the first."""
    from fedpriv.privacy.ledger.claims import ALONE

    return "" if epsilon is None else f", and {epsilon:g} {ALONE},"


def _rule(
    name: str, options: dict[str, Any], epsilon: float, delta: float, alone: float | None
) -> Rule:
    from fedpriv.privacy.ledger.rules import new_rule

    given = {key: value for key, value in options.items() if value is not None}
    try:
        return new_rule(name, given, epsilon, delta, alone)
    except ConfigError as error:
        raise error.but(key=f"--{str(error.key).replace('_', '-')}") from None


@app.command()
def show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Check a ledger from its first row to its head, and show what it has spent."""
    from fedpriv.privacy.ledger.ledger import Ledger

    with Ledger.open(path, reading=True) as ledger:
        figures, head, rows = ledger.figures(), ledger.head, ledger.rows()
    if as_json:
        shown = [{"number": r.number, "kind": r.kind, "hash": r.hash, **r.body} for r in rows]
        print(json.dumps({**figures, "head": asdict(head), "rows": shown}, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{path}[/]", soft_wrap=True)
    _print_figures(console, figures)
    console.print(f"head {head.hash} at row {head.rows}", soft_wrap=True)
    table = Table("row", "kind", "what", "at")
    for row in rows:
        what = ", ".join(f"{k} {_short(v)}" for k, v in row.body.items() if k != "at")
        table.add_row(str(row.number), row.kind, what, row.body.get("at", ""))
    console.print(table)


def _print_figures(console: Console, figures: dict[str, Any]) -> None:
    means, rule = figures["means"], figures["rule"]
    terms = ", ".join(f"{key} {value:g}" for key, value in rule.items() if key != "name")
    console.print(
        f"population {figures['dataset_id']}, {figures['declared_size']} units by"
        f" {figures['unit']!r}, at most {figures['max_records_per_unit']} records each\n"
        f"rule {rule['name']!r}{f' ({terms})' if terms else ''}, budget ε ="
        f" {figures['budget']:g}{_and_alone(figures['budget_alone'])} at δ ="
        f" {figures['delta']:g} for life"
        f"{', simulated' if figures['simulated'] else ''}"
        f"{'' if figures['private'] else ', NOT PRIVATE'}",
        soft_wrap=True,
    )
    for stated in figures["distinct"]:
        alike = f"units which look like those of {stated['other']} are different people"
        console.print(f"{stated['by']} states that {alike}", soft_wrap=True)
    table = Table("ε", "", "what it covers", show_header=True)
    for key, label in (
        ("epsilon_committed", "committed (the claim)"),
        ("epsilon_allocated", "allocated"),
        ("epsilon_spent", "spent"),
        ("epsilon_alone_committed", "alone, committed (the second claim)"),
        ("epsilon_alone_allocated", "alone, allocated"),
        ("epsilon_alone_spent", "alone, spent"),
    ):
        if figures[key] is not None:
            table.add_row(f"{figures[key]:.4f}", label, means[key])
    console.print(table)
    if plans := [_cells(plan) for plan in figures["plans"]]:
        columns = [name for name in plans[0] if any(plan[name] is not None for plan in plans)]
        table = Table(*columns)
        for plan in plans:
            table.add_row(*("–" if plan[name] is None else plan[name] for name in columns))
        console.print(table)


def _cells(plan: dict[str, Any]) -> dict[str, str | None]:
    """Return the cells of a plan in the table of plans; None if a plan has no such cell."""
    cells = {
        "job": plan["job"],
        "method": plan["method"],
        "rate": f"{plan['sample_rate']:g}",
        "noise": f"{plan['noise_multiplier']:g}",
        "may collude": None,
        "slots": str(plan["steps"]),
        **{key: str(plan[key]) for key in ("reserved", "released")},
        "": str(plan["closed"]),
    }
    if plan["max_colluding"] is not None:
        cells["may collude"] = f"{plan['max_colluding']}, noise in {plan['shares']}"
    return cells


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:18]}…" if len(text) > 40 else text


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A ledger, or what `export` wrote of one.")],
    head: SeenHead = "",
    witness: WitnessPath = None,
    report: Annotated[
        Path | None, typer.Option(help="A budget.json: is it signed, and of this ledger?")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check every row, and whatever was seen of the ledger elsewhere. Changes nothing."""
    from fedpriv.report.ledger_export import verify_ledger

    figures, newest, checked = verify_ledger(path, head=head, witness=witness, report=report)
    if as_json:
        found = {"verified": checked, "head": asdict(newest), **figures}
        print(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    for what in checked:
        console.print(f"[green]✓[/] {what}", soft_wrap=True)
    if not (head or witness or report):
        unknown = "whether there were newer rows: give --witness, --head or --report"
        console.print(f"[yellow]?[/] {unknown}", soft_wrap=True)
    _print_figures(console, figures)


@app.command()
def close(
    path: LedgerPath,
    job: Annotated[str, typer.Argument(help="Id of the job, as `show` prints it.")],
    witness: WitnessPath = None,
) -> None:
    """Let no further slot of a job be used. Gives back only what the ledger's rule allows."""
    from fedpriv.privacy.ledger import administration
    from fedpriv.privacy.ledger.ledger import Ledger

    with Ledger.open(path, witness) as ledger:
        before, alone_before = ledger.epsilon_allocated, ledger.epsilon_alone_allocated or 0.0
        after, alone = administration.close_job(ledger, job), ledger.epsilon_alone_allocated
    second = "" if alone is None else f"; alone, {upper(alone_before)} → {upper(alone)}"
    print(f"Closed {job}. ε allocated {upper(before)} → {upper(after)}{second}.")


@app.command()
def export(
    path: LedgerPath,
    out: Annotated[Path | None, typer.Option(help="File to write; else it is printed.")] = None,
) -> None:
    """Write every row as JSON, for someone else to verify. Rows hold public fields only."""
    from fedpriv.files import write_json
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.report.ledger_export import export_ledger

    with Ledger.open(path, reading=True) as ledger:
        document = export_ledger(ledger)
    if out is None:
        print(json.dumps(document, indent=2))
    else:
        write_json(out, document)
        print(f"Wrote {document['head']['rows']} rows to {out}.")


def _allocated(ledger: Ledger) -> str:
    """Say how much of the budget, or of both budgets, is allocated."""
    alone, terms = ledger.epsilon_alone_allocated, ledger.terms
    second = "" if alone is None else f"; alone, {upper(alone)} of {terms.budget_alone:g}"
    return f"ε allocated {upper(ledger.epsilon_allocated)} of {terms.budget:g}{second}"


@app.command()
def grow(
    path: LedgerPath,
    size: Annotated[int, typer.Option(help="Units in the population now, as you state it.", min=1)],
    delta: Annotated[
        float | None, typer.Option(help="δ from now on, below 1 / size; else it stays.")
    ] = None,
    witness: WitnessPath = None,
) -> None:
    """Raise the declared size of a population that grew, and lower its δ. The budget stays."""
    from fedpriv.privacy.ledger import administration
    from fedpriv.privacy.ledger.ledger import Ledger

    with Ledger.open(path, witness) as ledger:
        before = ledger.terms
        administration.grow(ledger, size, before.delta if delta is None else delta)
        after, allocated = ledger.terms, _allocated(ledger)
    print(
        f"{path}: {before.declared_size} → {after.declared_size} units, δ {before.delta:g} →"
        f" {after.delta:g}; {allocated}.\n"
        "State the same in the site's file, or in the federation file of a simulation."
    )


@app.command()
def distinct(
    path: LedgerPath,
    other: Annotated[str, typer.Option("--from", help="Data set of the other ledger.")],
    matches: Annotated[str, typer.Option(help="The code that the refusal shows.")],
    by: Annotated[str, typer.Option(help="The name of who states it; it stays in the ledger.")],
    witness: WitnessPath = None,
) -> None:
    """State that units which look like another ledger's are different people.

    Two patients 7 of two registers look alike, and so do notes from one template. If they are the
    same people after all, they pay from two budgets, and no figure of either ledger holds for them.
    """
    from fedpriv.privacy.ledger import administration
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.privacy.ledger.unit_index import UnitIndex

    with Ledger.open(path, witness) as ledger:
        index, own = UnitIndex(ledger.path.resolve().parent), ledger.terms.dataset_id
        index.check_refused(own, other, matches)
        administration.state_distinct(ledger, other, by)
        index.accept(own, other, matches, by)
    print(
        f"{path}: {by} states that units which look like those of {other} are different people."
        " Start the site again."
    )


@app.command()
def recover(
    path: LedgerPath,
    witness: Annotated[Path, typer.Option(help="What was last seen of the newer ledger.")],
    head: SeenHead = "",
    report: ElsewhereReport = None,
) -> None:
    """Go on with an older copy, after the newest was lost: all that may be missing is spent.

    A witness whose last lines were cut off hides what they saw. Only a report tells that.
    """
    from fedpriv.privacy.ledger import administration

    seen = _heads(path, head, report)
    with administration.recover(path, witness, seen) as ledger:
        print(
            "Every open job is closed and counted in full, and so is what the witness saw taken."
            f"\n{_allocated(ledger)}."
        )
    if not seen:
        print(
            "No report was given to compare with. If the coordinator has one that is newer than the"
            " witness, the witness lacks lines, and this ledger must not be used."
        )


@app.command()
def witness(
    path: LedgerPath,
    file: Annotated[Path, typer.Argument(help="The new witness, on another disk.")],
    never_restored: Annotated[
        bool, typer.Option("--never-restored", help="This file is no copy from a backup.")
    ] = False,
    head: SeenHead = "",
    report: ElsewhereReport = None,
) -> None:
    """Start another witness, after the old one was lost.

    It alone knew whether there is a newer copy of the ledger, and what that had taken. If this
    file is a copy from a backup, nobody can tell what its people have left, and it has to rest.
    """
    from fedpriv.privacy.ledger import administration

    if not never_restored:
        fix = "If this ledger is from a backup, what was spent since would be forgotten."
        raise ConfigError("has to be said", key="--never-restored", fix=fix)
    with administration.witness_anew(path, file, _heads(path, head, report)) as ledger:
        newest = ledger.head
    print(
        f"From here on, {file} is told of every row after {newest.rows}. Name it as `witness` in"
        " the site's file. Should the old one turn up, destroy it: it has not seen what follows."
    )


def _heads(path: Path, head: str, report: Path | None) -> list[Head]:
    """Return the ledger's heads that were seen elsewhere."""
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.report.ledger_export import parse_head, reported_head

    seen = [parse_head(head)] if head else []
    if report is not None:
        with Ledger.open(path, reading=True) as ledger:
            seen.append(reported_head(report, ledger.terms.dataset_id))
    return seen
