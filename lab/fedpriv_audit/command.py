"""`fedpriv audit`: what is attacked, how hard, and with what result."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedpriv.auditing.result import FILE, TITLES, WORLDS, Audit, Part, conclusion, shown, verdict
from fedpriv.progress import shown_on

MOST = 2  # figures of a world in a table; audit.json has all


def audit(
    file: Annotated[
        Path | None,
        typer.Argument(help="Federation file; without one, the four hospitals in the package."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="A finished run: audit its settings and adapter, write into its folder."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder for audit.json, without --run.")] = Path(
        "audit"
    ),
    parts: Annotated[
        str, typer.Option(help="The parts to audit.")
    ] = "pipeline,one-run,membership,exposure",
    quick: Annotated[
        bool, typer.Option("--quick", help="Run all parts at their smallest.")
    ] = False,
    jobs: Annotated[
        int | None, typer.Option(min=100, help="Jobs of the pipeline's audit, in each world.")
    ] = None,
    canaries: Annotated[
        int | None, typer.Option(min=100, max=8000, help="Canaries of the one-run audit.")
    ] = None,
    records: Annotated[
        int | None, typer.Option(min=20, help="Units whose membership the attacks guess.")
    ] = None,
    models: Annotated[
        int | None, typer.Option(min=2, help="Models trained in each world, on half of the units.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of the models' jobs, instead of the file's.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of canaries and coins, never of noise.")
    ] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Attack the federation: measure what an attacker could tell, and if a fault would be seen.

    It exits with 1 if an attack broke the claim, or missed a twin that it has to catch.
    """
    console = Console(stderr=as_json, highlight=False)
    say = partial(console.print, markup=False, soft_wrap=True)
    with shown_on(console, "Loading"):
        from fedpriv_audit import audit as running
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    wanted = running.check_parts(parts)
    size = (running.QUICK if quick else running.AuditSize()).stated(
        seed, jobs, canaries, records=records, models=models, rounds=rounds
    )
    subject = running.Subject.of(file, set_ or [], run, key="--run")
    folder = run or out
    with shown_on(console, "Beginning") as tell:
        found = running.run_audit(
            subject,
            folder,
            wanted,
            size,
            source=file or folder,
            command=shlex.join(["fedpriv", *sys.argv[1:]]),
            tell=tell,
        )
    if as_json:
        print(found.model_dump_json(indent=2))
    else:
        _show(found, console, say)
        say(f"{conclusion(found)}\n{folder / FILE}")
    if not (found.holds and found.sound):
        raise typer.Exit(1)


def _show(found: Audit, console: Console, say: Callable[[str], None]) -> None:
    if found.not_private:
        console.print("[bold red]NOT PRIVATE[/] (twins with less noise on public records)")
    for part in found.parts:
        console.print(_table(part))
    for refused in found.refused:
        say(f"not run  {refused.what}: {refused.why}")


def _table(part: Part) -> Table:
    """Show one part: a row for each world."""
    title = f"{TITLES[part.name]}: claimed ε = {part.epsilon:.3g} at δ = {part.delta:.2g}"
    made = Table(title=title, title_justify="left")
    for name in ("world", "its ε", "ε at least", "found", ""):
        made.add_column(name, justify="left" if name in ("world", "found", "") else "right")
    for world in part.worlds:
        proved = "" if world.epsilon_lower is None else f"{world.epsilon_lower:.2f}"
        cost = "none" if world.epsilon is None else f"{world.epsilon:.3g}"
        figures = "\n".join(map(shown, world.measures[:MOST]))
        made.add_row(WORLDS[world.name], cost, proved, figures, verdict(part, world))
    return made
