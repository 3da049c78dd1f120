"""Run a comparison from its settings to its files."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedpriv.errors import ConfigError, RunError
from fedpriv.files import write_atomic, write_json
from fedpriv.methods.proposal import job_recipe
from fedpriv.private_training.pool import WorkerPool
from fedpriv.progress import is_watched
from fedpriv_comparison import comparison as running
from fedpriv_comparison import present
from fedpriv_comparison.figures import Figures, figures
from fedpriv_comparison.held_out_scores import check_records
from fedpriv_comparison.outside import check_counts
from fedpriv_comparison.records import outside_in_turn
from fedpriv_comparison.runner import Runner, open_folder
from fedpriv_comparison.variants import BASE
from fedpriv_simulation.outside_sites import check_apart
from fedpriv_simulation.watching import bar_on


@dataclass(frozen=True)
class Compared:
    """Hold the result of a comparison.

    Attributes:
        figures: figures of each variant.
        document: everything that the table says, as compare.json holds it.
        report: path of compare.md; compare.json and compare.svg are beside it.
    """

    title: str
    figures: Sequence[Figures]
    document: dict[str, Any]
    report: Path


@contextmanager
def _quiet_sites() -> Iterator[None]:
    """Let sites log only errors. As a decorator, do so for a whole function."""
    log = logging.getLogger("fedpriv_client")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@_quiet_sites()
def run_comparison(
    asked: running.Comparison,
    *,
    baseline: str | None,
    out: Path,
    parallel: int,
    console: Console,
    command: str,
) -> Compared:
    """Run what has not been run yet, and write the tables.

    Args:
        baseline: name of the variant that the others are compared with. The default is dp-lora, if
            it is among them.
        out: the folder that keeps the results.
        parallel: how many runs at once.
        console: where progress is shown.
        command: the command that makes the tables again.

    Raises:
        FedprivError: a setting can't be used.
        KeyboardInterrupt: somebody stops it. All finished runs are kept.
    """
    names = [variant.name for variant in asked.variants]
    held, folder = _baseline(names, baseline), _folder(out)
    bar = bar_on(console)
    task = bar.add_task("Runs", total=asked.runs)
    print_plain = partial(console.print, markup=False, soft_wrap=True)

    def done(trial: Any, result: Any) -> None:
        bar.advance(task)
        if not is_watched(console):
            loss = result.last("eval_loss")
            said = result.error or ("" if loss is None else f"loss {loss:.3f}")
            print_plain(f"{trial.key} seed {trial.seed}: {said}")

    with open_folder(folder / "runs"):
        _check_records(asked, folder / "runs")
        print_plain(f"{asked.left(folder / 'runs')} of {asked.runs} runs to do.")
        with bar:
            rows = running.compare(asked, Runner(folder / "runs", parallel=parallel, done=done))
    found = figures(asked, rows, held)
    title = f"{', '.join(names)}: {asked.seeds} seed{'' if asked.seeds == 1 else 's'}"
    document = present.as_json(asked, found, held, command)
    write_json(folder / "compare.json", document)
    write_atomic(folder / "compare.md", present.markdown(asked, found, title, command))
    write_atomic(folder / "compare.svg", present.chart(rows))
    return Compared(title, found, document, folder / "compare.md")


def _check_records(asked: running.Comparison, folder: Path) -> None:
    """Refuse records that can't judge a model, unless all runs are done already."""
    if not asked.left(folder):
        return
    variant = asked.variants[0]
    config = asked.config(variant, variant.grid[0], 1)
    with closing(WorkerPool(1)) as pool, pool.borrow(job_recipe(config)) as worker:
        check_records(config, worker)
        if asked.counts:
            config = config if asked.left_out == (None,) else outside_in_turn(config)
            check_counts(config, worker, asked.counts)
            with tempfile.TemporaryDirectory() as cache:
                check_apart(config, Path(cache))


def _baseline(names: list[str], wanted: str | None) -> str:
    if wanted is None:
        trained = [name for name in names if name != BASE]
        return "dp-lora" if "dp-lora" in names else (trained or names)[-1]
    if wanted not in names:
        fix = f"Use one of {', '.join(names)}."
        raise ConfigError("is not compared", key="--baseline", value=wanted, fix=fix)
    return wanted


def _folder(out: Path) -> Path:
    """Return the folder of a comparison, new or begun."""
    known = {"runs", "compare.json", "compare.md", "compare.svg"}
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    others = any(not name.startswith(".") for name in names - known)
    if out.exists() and (not out.is_dir() or others):
        raise RunError(f"{out}: holds something other than a comparison. Give another --out.")
    out.mkdir(parents=True, exist_ok=True)
    return out
