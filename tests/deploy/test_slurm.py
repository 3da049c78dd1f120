"""The batch script, run as bash runs it: stopped by the scheduler's signal, submitted again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import held_fedpriv, wait_until

FOLDER = Path(__file__).parents[2] / "deploy" / "slurm"
SCRIPT = FOLDER / "simulate.sbatch"
BIN = str(Path(sys.executable).parent)


def submit(file: Path, out: Path, commands: str = BIN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(SCRIPT), str(file), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PATH": f"{commands}:{BIN}:{os.environ['PATH']}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.nightly
def test_a_job_that_runs_out_of_time_goes_on_when_submitted_again(
    federation: Callable[..., Any], tmp_path: Path
) -> None:
    file, out, held = federation(rounds=3), tmp_path / "run", tmp_path / "bin"
    held.mkdir()
    words = shlex.join(held_fedpriv(tmp_path, 1))
    (held / "fedpriv").write_text(f'#!/bin/bash\nexec {words} "$@"\n')
    (held / "fedpriv").chmod(0o755)
    first = submit(file, out, str(held))
    metrics = out / "metrics.jsonl"
    wait_until(lambda: (metrics.exists() and metrics.stat().st_size) or first.poll() is not None)
    first.send_signal(signal.SIGINT)  # to the batch shell alone, as `--signal=B:INT` does
    output, _ = first.communicate()
    assert first.returncode == 130, output
    assert len(metrics.read_text().splitlines()) == 1
    second = submit(file, out)
    output, _ = second.communicate()
    assert second.returncode == 0, output
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert len(metrics.read_text().splitlines()) == 3
