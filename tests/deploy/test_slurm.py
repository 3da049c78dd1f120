"""The batch script, run as bash runs it: stopped by the scheduler's signal, submitted again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "simulate.sbatch"
BIN = str(Path(sys.executable).parent)


def submit(file: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(SCRIPT), str(file), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.slow
def test_a_job_that_runs_out_of_time_goes_on_when_submitted_again(
    federation: Callable[..., Any], tmp_path: Path
) -> None:
    file, out = federation(rounds=30), tmp_path / "run"
    first = submit(file, out)
    deadline = time.monotonic() + 120
    metrics = out / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)  # to the batch shell alone, as `--signal=B:INT` does
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 130, output
    done = len(metrics.read_text().splitlines())
    assert 0 < done < 30
    second = submit(file, out)
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 0, output
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 30
