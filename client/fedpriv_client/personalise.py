"""`fedpriv-client personalise`: an adapter of the site's own, trained without noise; it stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fedpriv.config.personal import OwnSiteFile, OwnTraining
from fedpriv.errors import naming
from fedpriv.files import finite_json
from fedpriv.names import OwnKind
from fedpriv.personal.choosing import Epoch
from fedpriv.personal.own_adapter import WARNING, write_own_adapter
from fedpriv.personal.records import to_train_on
from fedpriv.personal.training import Personal, train_alone
from fedpriv.plain_training.adapter import read_values
from fedpriv_client.own import federated, opened


@dataclass(frozen=True)
class Made:
    """What was made.

    Attributes:
        training: examples that were learned from.
        parts: of them that were left out in turn, to choose rate and passes by; 0 if none were.
        result: passes and losses. Private, as all of it.
    """

    kind: OwnKind
    folder: Path
    job: str
    training: int
    parts: int
    result: Personal

    def as_dict(self) -> dict[str, Any]:
        """As JSON, for the site's own administrator."""
        return {
            "kind": self.kind,
            "adapter": str(self.folder),
            "job": self.job,
            "training": self.training,
            "parts": self.parts,
            "best": asdict(self.result.best),
            "passes": [asdict(epoch) for epoch in self.result.epochs],
        }


def personalise(
    file: OwnSiteFile,
    config: Path,
    adapter: Path | None = None,
    *,
    alone: bool = False,
    say: Callable[[str], None] = lambda text: None,
    begun: Callable[[OwnTraining], None] = lambda settings: None,
    told: Callable[[Epoch], None] = lambda epoch: None,
) -> Made:
    """Go on from a job's adapter with the site's own records, for as long as these say is best.

    An earlier adapter of the same kind and job is replaced when this one is whole.

    Args:
        adapter: folder of the job's adapter; the newest that was handed over without it.
        alone: begin at the base model instead, for comparison; the shape is the job's.
        say, begun, told: what is done, how it will be trained, and every pass over the records; for
            the administrator's screen.

    Raises:
        ConfigError, DataError, ModelError: it can't be begun; names what to do.
        RunningError: another one is under way.
        KeyboardInterrupt: nothing was changed.

    Privacy:
        None: it is trained on raw records, and so stays in the site's folder (law 16).
    """
    chosen = federated(file, config, adapter)
    kind: OwnKind = "alone" if alone else "personal"
    with opened(chosen, say) as own:
        worker, spec = own.worker, chosen.spec
        start = worker.initial if alone else read_values(chosen.folder, worker, chosen.facts)
        with naming(config):
            records = to_train_on(own.records, spec, worker.base.tokenizer, file.personal)
        count, parts = len(records.everything), records.left_out
        how = f", leaving out each of {parts} parts in turn to choose" if parts > 1 else ""
        say(f"Training on {count} examples{how}")
        settings = file.personal.beginning(kind)
        begun(settings)
        made = train_alone(worker, start, records, settings, told=told)
        folder = write_own_adapter(
            chosen.settings.state_dir / kind,
            worker,
            made.values,
            chosen.facts,
            site=chosen.settings.name,
            kind=kind,
            held_out=file.data.held_out,
            trained=made.best.said,
        )
    return Made(kind, folder, chosen.facts.job, count, parts, made)


def run(
    file: OwnSiteFile, config: Path, adapter: Path | None, *, alone: bool, as_json: bool
) -> dict[str, Any]:
    """Personalise with progress on the screen: a bar on a terminal, plain lines in a pipe.

    Returns:
        What was made, as JSON.
    """
    console = Console(stderr=as_json)
    lowest: float | None = None
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    task = bar.add_task("Starting", total=None, note="")

    def say(text: str) -> None:
        bar.update(task, description=text)
        if not console.is_terminal:
            console.print(text, highlight=False, soft_wrap=True)

    def begun(settings: OwnTraining) -> None:
        bar.update(task, total=settings.epochs)

    def told(epoch: Epoch) -> None:
        nonlocal lowest
        if epoch.loss is not None:
            lowest = epoch.loss if lowest is None else min(lowest, epoch.loss)
        if epoch.number:
            note = "" if lowest is None else f"at best {lowest:.3f}"
            bar.update(task, completed=epoch.number, note=f"rate {epoch.rate:g} {note}")
        if not console.is_terminal:
            console.print(_line(epoch), highlight=False)

    with bar:
        made = personalise(file, config, adapter, alone=alone, say=say, begun=begun, told=told)
    if not as_json:
        console.print(summary(made), highlight=False, soft_wrap=True, markup=False)
    return dict(finite_json(made.as_dict()))


def _line(epoch: Epoch) -> str:
    name = f"rate {epoch.rate:g}, pass {epoch.number}" if epoch.number else "before"
    return f"{name}, all records" if epoch.loss is None else f"{name}: loss {epoch.loss:.3f}"


def summary(made: Made) -> str:
    """What was made, for a person."""
    best = made.result.best
    if not best.number:
        found = "No pass lowered the loss on what was left out, so it is what it began with."
    elif best.loss is None:
        found = f"{best.number} passes over all records at rate {best.rate:g}."
    else:
        found = (
            f"Chosen: {best.number} passes at rate {best.rate:g}, after which the loss on records"
            f" that were left out is {best.loss:.3f}, and {made.result.epochs[0].loss:.3f} before."
            " All records were trained on so."
        )
    return (
        f"{found}\nThe adapter is in {made.folder}: {WARNING}.\n"
        "What it is worth on held-out records: fedpriv-client evaluate"
    )
