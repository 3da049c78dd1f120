"""What `fedpriv-server status` says, while a server runs and afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedpriv.errors import RunError
from fedpriv.process import Status, only_process
from fedpriv_server.cli import app
from fedpriv_server.job_queue import Queue
from fedpriv_server.status import facts_of, facts_of_lasting, listens
from tests.server.test_job_queue import job


def row(**changes: Any) -> dict[str, Any]:
    return {"there": True, "admitted": True, "last": "ok"} | changes


def said(folder: Path, *options: str) -> str:
    answer = CliRunner().invoke(app, ["status", "--out", str(folder), *options])
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_a_site_is_there_only_while_a_server_runs(tmp_path: Path) -> None:
    rows = {"near": row(), "gone": row(there=False)}
    with only_process(tmp_path):
        Status(tmp_path, job="j", state="waiting", sites=rows, problem="Waiting for far.")
        facts = facts_of(tmp_path)
        assert [site["there"] for site in facts["sites"].values()] == [True, False]
        assert "A server runs (process " in said(tmp_path) and listens(tmp_path)
    facts = facts_of(tmp_path)
    assert not any(site["there"] for site in facts["sites"].values())
    assert (facts["state"], facts["running"], listens(tmp_path)) == ("stopped", False, False)
    text = said(tmp_path)
    assert "No server runs." in text and "yes" not in text
    assert "Waiting for" not in text and "Start the server again" in text
    assert json.loads(said(tmp_path, "--json"))["sites"]["near"]["there"] is False


def test_a_finished_job_is_finished_and_nobody_is_there(tmp_path: Path) -> None:
    Status(tmp_path, job="j", state="finished", sites={"a": row()}, problem="")
    assert facts_of(tmp_path)["state"] == "finished" and listens(tmp_path)
    assert not facts_of(tmp_path)["sites"]["a"]["there"]


def test_why_a_job_stopped_is_said_afterwards(tmp_path: Path) -> None:
    Status(tmp_path, job="j", state="stopped", sites={}, problem="The disk is full.")
    assert "The disk is full." in said(tmp_path)


def test_where_no_server_has_worked_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no server has worked here"):
        facts_of(tmp_path)


def test_of_a_server_that_lasts_its_job_is_shown_too(tmp_path: Path) -> None:
    with Queue.open(tmp_path) as queue:
        queue.submit(*job(tmp_path))
        folder = queue.job(1).folder(tmp_path)
    Status(tmp_path, job="1", state="running", sites={"a": row()}, problem="")
    folder.mkdir(parents=True)
    assert "run" not in facts_of_lasting(tmp_path)
    Status(folder, job="notes-1", state="running", round=2, rounds=9, sites={}, problem="")
    asked = ["status", "--state", str(tmp_path)]
    answer = CliRunner().invoke(app, asked)
    assert "1: stopped" in answer.output and "notes-1: stopped, round 2 of 9" in answer.output
    assert answer.output.count("No server runs.") == 1
    assert CliRunner().invoke(app, [*asked, "--probe"]).exit_code == 1
    assert CliRunner().invoke(app, [*asked, "--out", str(folder)]).exit_code == 2
