"""Show a run to the person who waits for it: on a terminal, in a notebook, or line by line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedpriv.progress import is_watched
from fedpriv.report.figures import look_line

if TYPE_CHECKING:
    from fedpriv_simulation import simulate as simulation


def new_run(job: str) -> Path:
    """Return the run directory for a job of this name, if the user names none."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    return Path("runs") / f"{job}-{stamp}"


def bar_on(console: Console, *beside: TextColumn) -> Progress:
    """Make a bar that is shown where somebody watches, and leaves nothing behind."""
    done = TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn()
    hidden = not is_watched(console)
    columns = *done, *beside, TimeRemainingColumn()
    return Progress(*columns, console=console, disable=hidden, transient=True)


@contextmanager
def watching(rounds: int, opening: str, console: Console) -> Iterator[partial[simulation.Outcome]]:
    """Lend `simulate` for a `with` block, with its progress shown on a console.

    It shows a bar on a terminal and in a notebook, and elsewhere a plain line for each evaluation.

    Args:
        rounds: rounds of the job.
        opening: text to show at once, before anything is imported or loaded.
    """
    console.print(opening, soft_wrap=True)
    from fedpriv_simulation import simulate as simulation

    bar = bar_on(console, TextColumn("{task.fields[note]}"))
    task = bar.add_task("Loading", total=rounds, note="")
    note, done_before, begun, seen = "", 0, time.monotonic(), is_watched(console)

    def say(text: str) -> None:
        bar.update(task, description=text)
        if not seen:
            console.print(text)

    def started(job: Any) -> None:
        nonlocal note, done_before, begun
        note = f"loss {job.baseline.eval_loss:.3f}"
        done_before, begun = len(job.rounds), time.monotonic()
        if not seen:
            console.print(f"Rounds begin: {note} before any")
        bar.reset(task, description="Rounds", completed=len(job.rounds), note=note)

    def round_done(metrics: dict[str, Any]) -> None:
        nonlocal note
        if metrics["eval_loss"] is not None:
            note = f"loss {metrics['eval_loss']:.3f}"
            if not seen:
                number, of = metrics["round"], rounds
                each = (time.monotonic() - begun) / max(1, number - done_before)
                left = f", about {each * (of - number):.0f} s to go" if number < of else ""
                console.print(f"round {number:4}/{of}  {note}{left}")
        if metrics["held_out"] is not None:
            text = f"after round {metrics['round']}: {look_line(metrics['held_out'])}"
            console.print(text, soft_wrap=True)
        bar.update(task, completed=metrics["round"], note=note)

    with bar:
        progress = simulation.Progress(say, started, round_done)
        yield partial(simulation.simulate, progress=progress)
