"""The check of gradients on a device runs, and would see what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_quick_run_finds_every_format_right_on_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "correctness.json"
    command = [sys.executable, "benchmarks/correctness.py", "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert {row["dtype"] for row in rows} == {"float64", "float32", "mixed", "bfloat16"}
    assert all(row["company"] and row["again"] and row["strict"] for row in rows)
