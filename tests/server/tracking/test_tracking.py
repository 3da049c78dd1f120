"""Tools that are absent, fail or hang: a run goes on as if there were none."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.job import JobConfig
from fedpriv.config.load import digest, load_job
from fedpriv.errors import ConfigError
from fedpriv_audit.training import TrainingSize, for_audit
from fedpriv_comparison.comparison import Comparison
from fedpriv_comparison.variants import parse_variants
from fedpriv_server.run_directory import RunDirectory
from fedpriv_server.serve import serve
from fedpriv_server.tracking import tracking
from fedpriv_server.tracking.public import Figures
from fedpriv_simulation.simulate import Outcome, Progress, simulate
from tests.waiting import CEILING

Make = Callable[..., Path]
ALL = ("tracking.tensorboard=true", "tracking.wandb=true", "tracking.mlflow=sqlite:///m.db")
OF_RECORDS = ('data = "site', "size")  # begin the lines that are no business of a server


class Kept:
    """A tool that remembers; it raises, or hangs until it may go on."""

    def __init__(self, *, fails: bool = False, hangs: bool = False) -> None:
        self._fails, self._hangs = fails, hangs
        self.goes_on, self.is_told = threading.Event(), threading.Event()
        self.steps: list[int] = []
        self.finished: bool | None = None

    def __call__(
        self, config: JobConfig, run: RunDirectory, rounds: Sequence[Figures], finished: bool
    ) -> None:
        if self._fails:
            raise OSError("no room\nat all")
        if self._hangs:
            self.goes_on.wait(CEILING)
        assert all(figures["eval_loss"] > 0 for figures in rounds)
        self.steps, self.finished = list(range(len(rounds))), finished
        self.is_told.set()


def run_with(
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    out: Path,
    tools: dict[str, Kept],
    **options: Any,
) -> Outcome:
    monkeypatch.setattr(tracking, "TOOLS", tools)
    config = load_job(file, [text for text in ALL if text.split("=")[0][9:] in tools])
    return simulate(config, out, source=file, **options)


@pytest.mark.parametrize("public", [True, False])
def test_a_tool_hears_when_the_job_has_ended(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    """It keeps the time of what it is told, and a round's depends on who was sampled."""
    tool = Kept()
    told: list[bool] = []
    progress = Progress(round_done=lambda _: told.append(tool.is_told.is_set()))
    file = federation(public=public)
    run_with(monkeypatch, file, tmp_path / "run", {"wandb": tool}, progress=progress)
    assert (tool.steps, tool.finished) == ([0, 1, 2, 3], True)
    assert told == [False, False, False]


def test_a_tool_that_fails_changes_nothing_else(
    federation: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Kept(fails=True), Kept()
    tools = {"wandb": bad, "tensorboard": good}
    with caplog.at_level(logging.WARNING, logger=tracking.__name__):
        outcome = run_with(monkeypatch, federation(), tmp_path / "run", tools)
    assert outcome.run.info["status"] == "finished" and len(outcome.rounds) == 3
    assert (good.steps, good.finished) == ([0, 1, 2, 3], True)
    (record,) = [record for record in caplog.records if record.name == tracking.__name__]
    assert "wandb" in record.getMessage() and "no room" in record.getMessage()
    assert "at all" not in record.getMessage()


def test_a_tool_that_hangs_is_waited_for_only_a_while(
    federation: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE", 0.0)
    slow = Kept(hangs=True)
    outcome = run_with(monkeypatch, federation(), tmp_path / "run", {"mlflow": slow})
    assert len(outcome.rounds) == 3 and slow.steps == []
    assert "mlflow: is slow" in caplog.text
    slow.goes_on.set()
    assert slow.is_told.wait(CEILING)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_tool_that_is_absent_is_refused_by_name_before_anything(
    name: str, federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    file, out = federation(), tmp_path / "run"
    config = load_job(file, ALL)
    with pytest.raises(ConfigError, match=rf"tracking\.{name}: .*pip install 'fedpriv\[{name}\]'"):
        simulate(config, out, source=file)
    lines = [line for line in file.read_text().splitlines() if not line.startswith(OF_RECORDS)]
    file.write_text("\n".join(lines))
    network = load_job(file, [*ALL, "job.engine=network", "server.address=localhost:1"])
    with pytest.raises(ConfigError, match=rf"tracking\.{name}: "):
        serve(network, out, source=file)
    assert not out.exists()


def test_what_is_tracked_is_no_part_of_the_job(federation: Make, tmp_path: Path) -> None:
    """So a run goes on without a tool that is gone, and run.json says nothing of it."""
    file = federation()
    plain, tracked = load_job(file), load_job(file, ALL)
    assert digest(plain) == digest(tracked)
    run = RunDirectory.create(tmp_path / "run", tracked, insecure_seed=None)
    run.info["baseline"], run.info["model"] = {}, {}
    run.ready()
    assert "tracking" not in run.info["config"]
    assert RunDirectory.resume(tmp_path / "run", plain, insecure_seed=None).info["job_id"]


def test_comparisons_and_audits_track_nothing(federation: Make) -> None:
    """Their runs are made to be less private, and their own tables say what came of them."""
    file = federation()
    assert not for_audit(load_job(file, ALL), TrainingSize()).tracking.backends
    found = Comparison.of(file, ALL, parse_variants(["dp-lora"], []), seeds=1)
    assert not any(config.tracking.backends for config in found.configs.values())
