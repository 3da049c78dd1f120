"""`fedpriv compare`: what is asked, how long it will take, what came out."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.errors import ConfigError, RunError
from fedpriv.files import write_atomic, write_json
from fedpriv.process import stop_on_terminate


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
        typer.Option("--grid", help="[METHOD:]KEY=VALUE,VALUE… to choose from; may come again."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method that are reported.")] = 3,
    tuning_seeds: Annotated[
        int, typer.Option(min=1, help="Other runs, that each setting of a grid is judged by.")
    ] = 1,
    baseline: Annotated[
        str | None, typer.Option(help="What the others are held against.", show_default="dp-lora")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=0.99, help="Share of its units that each site tests on, if it names none."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results are kept and found again.")] = Path(
        "comparison"
    ),
    parallel: Annotated[
        int, typer.Option(min=1, help="Runs at once; each has its share of the cores.")
    ] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Methods side by side on public data, each with settings chosen for it.

    Settings are chosen on other evaluation records than those that are reported: evaluation.tuning,
    or one half. The same command goes on where it was stopped.
    """
    console = Console(stderr=as_json)
    with console.status("Loading") if console.is_terminal else nullcontext():
        from fedpriv_comparison import comparison as running
        from fedpriv_comparison import figures, present
        from fedpriv_comparison.estimate import estimate
        from fedpriv_comparison.runner import Runner, open_folder
        from fedpriv_comparison.variants import listed, parse_variants
    logging.getLogger("fedpriv_client").setLevel(logging.ERROR)
    names = listed(methods)
    variants = parse_variants(names, grid or [])
    held = _baseline(names, baseline)
    asked = running.Comparison.of(file, set_ or [], variants, seeds, tuning_seeds, held_out)
    folder = _folder(out)
    stop_on_terminate()

    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("Runs", total=asked.runs)
    print_plain = partial(console.print, markup=False, highlight=False, soft_wrap=True)

    def done(trial: Any, result: Any) -> None:
        bar.advance(task)
        if not console.is_terminal:
            loss = result.last("eval_loss")
            said = result.error or ("" if loss is None else f"loss {loss:.3f}")
            print_plain(f"{trial.key} seed {trial.seed}: {said}")

    try:
        with open_folder(folder / "runs"):
            print_plain(estimate(asked, folder / "runs", parallel))
            with bar:
                rows = running.compare(asked, Runner(folder / "runs", parallel=parallel, done=done))
    except KeyboardInterrupt:
        console.print("\nStopped; the same command goes on from here.", highlight=False)
        raise
    found = figures.figures(asked, rows, held)
    command = shlex.join(["fedpriv", *sys.argv[1:]])
    title = f"{', '.join(names)}: {seeds} seed{'' if seeds == 1 else 's'}"
    document = present.as_json(asked, found, held, command)
    write_json(folder / "compare.json", document)
    write_atomic(folder / "compare.md", present.markdown(asked, found, title, command))
    write_atomic(folder / "compare.svg", present.chart(rows))
    if as_json:
        print(json.dumps(document, indent=2))
        return
    console.print(f"{escape(title)}; [bold red]NOT PRIVATE[/] (seeded noise)", highlight=False)
    for table in present.tables(found, seeds):
        console.print(table)
    for line in present.failures(found):
        print_plain(f"failed  {line}", style="yellow")
    print_plain(f"{present.MEANING}\n{folder / 'compare.md'}")


def _baseline(names: list[str], wanted: str | None) -> str:
    if wanted is None:
        trained = [name for name in names if name != "base"]
        return "dp-lora" if "dp-lora" in names else (trained or names)[-1]
    if wanted not in names:
        raise ConfigError(
            "is not compared", key="--baseline", value=wanted, fix=f"Use one of {', '.join(names)}."
        )
    return wanted


def _folder(out: Path) -> Path:
    """The folder of a comparison, new or begun."""
    known = {"runs", "compare.json", "compare.md", "compare.svg"}
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    others = {name for name in names - known if not name.startswith(".")}
    if out.exists() and (not out.is_dir() or others):
        raise RunError(f"{out}: holds something that is no comparison. Give another --out.")
    out.mkdir(parents=True, exist_ok=True)
    return out
