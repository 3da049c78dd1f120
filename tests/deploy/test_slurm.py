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

FOLDER = Path(__file__).parents[2] / "deploy" / "slurm"
SCRIPT = FOLDER / "simulate.sbatch"
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


@pytest.mark.nightly
def test_a_job_that_runs_out_of_time_goes_on_when_submitted_again(
    federation: Callable[..., Any], tmp_path: Path
) -> None:
    file, out = federation(rounds=30), tmp_path / "run"
    first = submit(file, out)
    deadline = time.monotonic() + 300
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


SRUN = """#!/bin/bash
# Of two machines of a job the other one is this one, too.
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


@pytest.mark.nightly
def test_a_cluster_of_its_own_is_started_used_and_ended(
    federation: Callable[..., Any], tmp_path: Path
) -> None:
    file, out, commands = federation(rounds=2), tmp_path / "run", tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text(SRUN)
    (commands / "srun").chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURMD_NODENAME": "first",
        "HOME": str(tmp_path),
        "PATH": f"{commands}:{BIN}:{os.environ['PATH']}",
    }
    with_no_token = {key: os.environ[key] for key in os.environ if not key.startswith("RAY_")}
    done = subprocess.run(
        ["bash", str(FOLDER / "cluster.sbatch"), str(file), str(out), "--insecure-seed", "7"],
        env=with_no_token | slurm,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert not list(tmp_path.glob(".fedpriv-ray-*"))
    left = ["pgrep", "-af", f"/tmp/ray-{os.getpid()}/"]
    until = time.monotonic() + 120
    while subprocess.run(left, capture_output=True).stdout:
        assert time.monotonic() < until
        time.sleep(0.5)
