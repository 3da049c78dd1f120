"""`fedpriv.simulate`: a federation on this machine, as a function."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, InstanceOf
from rich.console import Console

from fedpriv.arguments import PathName, checked
from fedpriv.config.job import JobConfig
from fedpriv.config.load import EMBEDDED, check_no_overrides
from fedpriv.environment import set_environment
from fedpriv.errors import RunError
from fedpriv.names import MAX_SEED
from fedpriv.one_line import one_line
from fedpriv.progress import is_watched
from fedpriv.report.budget import BudgetReport
from fedpriv.report.figures import last_loss, worse
from fedpriv.terminal import use_readable_output
from fedpriv_simulation import first_run
from fedpriv_simulation.watching import new_run, watching

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Simulation:
    """Hold the result of a simulation.

    Attributes:
        folder: the run directory; see docs/tutorials/first-steps.md.
        metrics: a row for each round, of figures only, as `pandas.DataFrame` takes them. Those of a
            site are in columns such as ``sites.surgery.epsilon_spent``.
        before: the scores of the base model.
        worse: whether the model ends with a higher loss than it began with.
        adapter: a folder that peft loads.
        budget: site → its signed budget report.
        report: the page report.html.

    Privacy:
        Everything but `folder`/private may be handed on: it was released by a mechanism that a
        site's ledger paid for, or is public.
    """

    folder: Path
    metrics: list[dict[str, Any]]
    before: dict[str, float]
    worse: bool
    adapter: Path
    budget: dict[str, BudgetReport]
    report: Path

    __repr__ = one_line


@checked
def simulate(
    job: InstanceOf[JobConfig] | PathName | None = None,
    overrides: Sequence[str] = (),
    *,
    out: PathName | None = None,
    resume: bool = False,
    insecure_seed: Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)] | None = None,
    quiet: bool = False,
) -> Simulation:
    """Fine-tune a model across the sites of a federation, all on this machine.

    Shows a bar on a terminal and in a notebook, and nothing where nobody watches. An interrupt
    leaves a run that can go on: call it with `resume`, the same job and the same folder. That costs
    no more.

    Args:
        job: a federation file, a job that `load_job` made, or None for the embedded federation.
        overrides: ``a.b=value`` texts for the keys of a file, as ``--set`` takes them.
        out: run directory, which has to be new. The default is a directory in ``runs`` with the
            job's name.
        resume: go on with the run in `out`.
        insecure_seed: seed of repeatable noise, for public data alone. The result is NOT PRIVATE.
        quiet: show nothing.

    Raises:
        FedprivError: something is wrong. Nothing is spent before the first round.
        KeyboardInterrupt: somebody stops it. A note says how to go on.

    Privacy:
        As for `fedpriv simulate`: each site pays from its ledger before it computes, and adds its
        own noise. A person who runs it on one machine sees the records of all sites.
    """
    set_environment()
    if resume and out is None:
        raise RunError("There is no run to go on with: name its folder with out.")
    config, source = _job(job, overrides)
    folder = new_run(config.job.name) if out is None else Path(out)
    use_readable_output()
    console = Console(highlight=False)
    console.quiet = quiet or not is_watched(console)
    opening = f"{len(config.sites)} sites, {config.job.rounds} rounds; run directory {folder}"
    try:
        with watching(config.job.rounds, opening, console) as run:
            seed = insecure_seed
            found = run(config, folder, source=source, resume=resume, insecure_seed=seed)
    except KeyboardInterrupt as stopped:
        if (folder / "run.json").exists():
            stopped.add_note(
                "What was spent stays spent. To go on, call simulate again with the same job and"
                f" out={str(folder)!r}, resume=True."
            )
        raise
    said = worse(found.baseline.eval_loss, last_loss(found.rounds))
    if said and not quiet:
        log.warning("%s", said)
    return Simulation(
        folder=folder,
        metrics=[_flat(row) for row in found.rounds],
        before=found.baseline.as_dict(),
        worse=bool(said),
        adapter=folder / "adapter",
        budget=dict(found.budgets),
        report=found.report,
    )


def _job(job: JobConfig | Path | str | None, overrides: Sequence[str]) -> tuple[JobConfig, Path]:
    """Return the job, and the path that messages name as its source."""
    if isinstance(job, JobConfig):
        check_no_overrides(overrides)
        return job, Path(job.job.name)
    file = None if job is None else Path(job)
    return first_run.load(file, overrides), file or EMBEDDED


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a row to one level of names, joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        named = {prefix + key: value}
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else named
    return flat
