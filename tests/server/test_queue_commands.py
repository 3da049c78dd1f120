"""The commands that speak to the queue, without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.errors import ConfigError, FedprivError, RunError
from fedpriv_server.cli import app
from tests.server.test_job_queue import job


def typed(folder: Path, *arguments: object) -> str:
    """What a command prints; an error on purpose is raised here."""
    asked = [*map(str, arguments), "--state", str(folder / "state")]
    answer = CliRunner().invoke(app, asked, env={"COLUMNS": "200"})
    if isinstance(answer.exception, FedprivError):
        raise answer.exception
    assert answer.exit_code == 0, answer.output
    return answer.output


def listed(folder: Path) -> list[tuple[Any, Any]]:
    found = json.loads(typed(folder, "list", "--json"))
    return [(one["id"], one["state"]) for one in found]


def test_jobs_are_submitted_listed_moved_and_aborted(tmp_path: Path) -> None:
    _, file = job(tmp_path)
    for number, name in enumerate(("x", "y", "z"), 1):
        said = typed(tmp_path, "submit", file, "--set", f"job.name={name}")
        assert said == f"Job {number} is queued.\n"
    typed(tmp_path, "reorder", 3)
    typed(tmp_path, "reorder", 1)
    assert listed(tmp_path) == [(1, "waiting"), (3, "waiting"), (2, "waiting")]
    assert typed(tmp_path, "abort", 3) == "Job 3 is aborted.\n"
    assert listed(tmp_path) == [(3, "aborted"), (1, "waiting"), (2, "waiting")]
    assert "Aborted before it began." in typed(tmp_path, "list")
    shown = typed(tmp_path, "show", 3)
    assert "Job 3, z: aborted. Aborted before it began." in shown and "0003-z" in shown
    typed(tmp_path, "retry", 3)
    assert listed(tmp_path)[-1] == (3, "waiting")
    with pytest.raises(RunError, match="holds no job 7"):
        typed(tmp_path, "show", 7)


def test_a_simulation_is_no_job_of_it(tmp_path: Path) -> None:
    _, file = job(tmp_path)
    text = file.read_text().partition("[server]")[0].replace('engine = "network"\n', "")
    file.write_text(text + '[[sites]]\nname = "a"\ndata = "a.jsonl"\nsize = 9\n')
    with pytest.raises(ConfigError, match=r"job\.engine: is not for the network"):
        typed(tmp_path, "submit", file)
