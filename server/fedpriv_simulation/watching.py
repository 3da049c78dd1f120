"""A run as somebody sees it who waits for it: on a terminal, in a notebook, or line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.config.job import JobConfig
from fedpriv.progress import is_watched
from fedpriv.report.figures import look_line

if TYPE_CHECKING:
    from fedpriv_simulation import simulate as simulation


def new_run(config: JobConfig) -> Path:
    """The run directory of a job for which nobody named one."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("runs") / f"{config.job.name}-{stamp}"


@contextmanager
def watching(config: JobConfig, opening: str, console: Console) -> Iterator[simulation.Progress]:
    """What a simulation tells of itself, shown on a console for the time of a `with` block.

    A bar on a terminal and in a notebook; elsewhere a plain line a round.

    Args:
        opening: what is said once, when everything is ready.
    """
    from fedpriv_simulation import simulate as simulation

    bar = Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not is_watched(console),
        transient=True,
    )
    task = bar.add_task("Loading", total=config.job.rounds, note="")
    note = ""

    def say(text: str) -> None:
        bar.update(task, description=text)
        if not is_watched(console):
            console.print(text, highlight=False)

    def started(job: Any) -> None:
        nonlocal note
        note = f"loss {job.baseline.eval_loss:.3f}"
        console.print(opening, highlight=False, soft_wrap=True)
        bar.reset(task, description="Rounds", completed=len(job.rounds), note=note)

    def round_done(metrics: dict[str, Any]) -> None:
        nonlocal note
        if metrics["eval_loss"] is not None:
            note = f"loss {metrics['eval_loss']:.3f}"
            if not is_watched(console):
                number, of = metrics["round"], config.job.rounds
                console.print(f"round {number:4}/{of}  {note}", highlight=False)
        if metrics["held_out"] is not None:
            text = f"after round {metrics['round']}: {look_line(metrics['held_out'])}"
            console.print(text, highlight=False, soft_wrap=True)
        bar.update(task, completed=metrics["round"], note=note)

    with bar:
        yield simulation.Progress(say, started, round_done)
