"""A simulation whose `compute.dtype` is auto: settled once, for all sites, and kept on resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv_server import number_format as module
from fedpriv_server.job import Job
from fedpriv_server.number_format import settle
from fedpriv_server.run_directory import RunDirectory
from fedpriv_simulation.simulate import Progress, simulate

Make = Callable[..., Any]


class Stop:
    """Ends a run after its first round, and remembers what its server computes in."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def started(self, job: Job) -> None:
        self.seen.append(job.recipe.compute.dtype)

    def round_done(self, metrics: dict[str, Any]) -> None:
        if metrics["round"] == 1:
            raise KeyboardInterrupt

    @property
    def progress(self) -> Progress:
        return Progress(started=self.started, round_done=self.round_done)


def test_it_is_settled_once_for_all_and_kept_on_resume(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[bool] = []

    def trial(recipe: ModelRecipe, pool: WorkerPool, *, exact: bool) -> str:
        tried.append(exact)
        return "mixed"

    monkeypatch.setattr(module, "settled_dtype", trial)
    file, out, stop = federation(rounds=2), tmp_path / "run", Stop()
    config = load_job(file, ["compute.dtype=auto"])
    made: list[str] = []
    lend = WorkerPool.borrow

    def borrow(pool: WorkerPool, recipe: ModelRecipe, *rest: Any) -> Any:
        made.append(recipe.compute.dtype)
        return lend(pool, recipe, *rest)

    monkeypatch.setattr(WorkerPool, "borrow", borrow)
    with pytest.raises(KeyboardInterrupt):
        simulate(config, out, source=file, progress=stop.progress)
    outcome = simulate(config, out, source=file, progress=stop.progress, resume=True)
    assert tried == [False]
    assert stop.seen == ["mixed", "mixed"] and set(made) == {"mixed"}  # sites and server alike
    info = json.loads((out / "run.json").read_text())
    assert info["dtype"] == "mixed" and info["config"]["compute"]["dtype"] == "auto"
    assert module.settled(config, outcome.run.info).compute.dtype == "mixed"


@pytest.mark.parametrize(
    ("settings", "seed", "here", "exact"),
    [
        ([], None, True, False),
        (["privacy.numerics=strict"], None, True, True),
        ([], 7, True, True),
        ([], None, False, True),
    ],
)
def test_what_has_to_be_the_same_elsewhere_is_not_tried(
    federation: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: list[str],
    seed: int | None,
    here: bool,
    exact: bool,
) -> None:
    told: list[bool] = []

    def trial(*_: Any, exact: bool) -> str:
        told.append(exact)
        return "float32"

    monkeypatch.setattr(module, "settled_dtype", trial)
    config = load_job(federation(), ["compute.dtype=auto", *settings])
    run = RunDirectory.create(tmp_path / "run", config, insecure_seed=seed)
    settle(config, run, WorkerPool(), here=here)
    assert told == [exact]


def test_a_stated_format_is_not_tried(federation: Make, tmp_path: Path) -> None:
    config = load_job(federation())
    run = RunDirectory.create(tmp_path / "run", config, insecure_seed=None)
    assert settle(config, run, WorkerPool(), here=True) is config
    assert "dtype" not in run.info
