"""`fedpriv compare`: what is asked, how long it will take, and what came out."""

from __future__ import annotations

import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedpriv.process import stop_on_terminate
from fedpriv.progress import shown_on


def compare(
    file: Annotated[
        Path | None, typer.Argument(help="Federation file; without one, the embedded example.")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="METHOD[-pooled|-local|+personal][:KEY=VALUE]…, separated by commas. Without"
            " noise: base, lora, lora-clipped, lora-alone, synthetic."
        ),
    ] = "base,lora,dp-lora",
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", help="Values to choose from, [METHOD:]KEY=VALUE,VALUE…; may be repeated."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Reported runs of each method.")] = 3,
    tuning_seeds: Annotated[
        int, typer.Option(min=1, help="Other runs, which judge each setting of a grid.")
    ] = 1,
    baseline: Annotated[
        str | None,
        typer.Option(help="The method to compare the others with.", show_default="dp-lora"),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=0.99, help="Share of units to test on, at each site that names none."
        ),
    ] = None,
    new_sites: Annotated[
        str | None,
        typer.Option(
            metavar="N,N…",
            help="Numbers of units that each outside site trains on, such as 4,16,64.",
        ),
    ] = None,
    leave_one_site_out: Annotated[
        bool,
        typer.Option("--leave-one-site-out", help="Make each site an outside site in turn."),
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder that keeps the results.")] = Path(
        "comparison"
    ),
    parallel: Annotated[
        int, typer.Option(min=1, help="Runs at once; each has its share of the cores.")
    ] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Replace a value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compare methods on public data, each with settings chosen for it.

    Settings are chosen on other evaluation records than the reported ones: evaluation.tuning, or
    one half. The same command goes on where it was stopped. It exits with 1 if a method ended
    worse than it began.
    """
    console = Console(stderr=as_json, highlight=False)
    with shown_on(console, "Loading"):
        from fedpriv_comparison import present
        from fedpriv_comparison.comparison import Comparison
        from fedpriv_comparison.run_comparison import run_comparison
        from fedpriv_comparison.variants import rows_of
    stop_on_terminate()
    try:
        rows, counts = rows_of(methods, grid or []), _numbers(new_sites)
        asked = Comparison.of(
            file, set_ or [], rows, seeds, tuning_seeds, held_out, counts, leave_one_site_out
        )
        command = shlex.join(["fedpriv", *sys.argv[1:]])
        compared = run_comparison(
            asked, baseline=baseline, out=out, parallel=parallel, console=console, command=command
        )
    except KeyboardInterrupt:
        console.print("\nStopped; the same command goes on from here.")
        raise
    ended_worse = any(row.worse for row in compared.figures)
    if as_json:
        print(json.dumps(compared.document, indent=2))
        raise typer.Exit(int(ended_worse))
    title = escape(compared.title)
    console.print(f"{title}; [bold red]NOT PRIVATE[/] (seeded noise)")
    for table in present.tables(compared.figures, seeds):
        console.print(table)
    print_plain = partial(console.print, markup=False, soft_wrap=True)
    for line in present.failures(compared.figures):
        print_plain(f"failed  {line}", style="yellow")
    for remark in compared.document["remarks"]:
        print_plain(remark)
    print_plain(f"{present.MEANING}\n{compared.report}")
    raise typer.Exit(int(ended_worse))


def _numbers(text: str | None) -> list[int]:
    """Read numbers of units, separated by commas."""
    if text is None:
        return []
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise typer.BadParameter(f"{text!r}: expected numbers of units, such as 4,16,64")
    return [int(part) for part in text.split(",")]
