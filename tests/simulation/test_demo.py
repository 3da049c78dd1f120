"""A coordinator and three hospitals as processes, by one command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.errors import RunError

FEDPRIV = Path(sys.executable).with_name("fedpriv")


@pytest.mark.slow
def test_a_consortium_is_set_up_and_ends_a_job(tmp_path: Path) -> None:
    words = [FEDPRIV, "consortium", "demo", tmp_path / "demo", "--rounds", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "demo" / "coordinator" / "run"
    assert f"Open {run / 'report.html'}" in done.stdout
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    assert len(list((run / "sites").glob("*/budget.json"))) == 3
    for line in ("surgery$ fedpriv-client setup", "coordinator$ fedpriv provision"):
        assert line in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["consortium", "demo", str(tmp_path)])
    assert isinstance(said.exception, RunError)
    assert not list(tmp_path.iterdir())
