"""The files that a simulation has open, and that sites without room are visited."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.config.load import load_job
from fedpriv_simulation import handles
from fedpriv_simulation import simulate as module
from fedpriv_simulation.handles import EACH, OTHERS, open_at_once
from fedpriv_simulation.simulate import Outcome, Progress, simulate

Make = Callable[..., Any]


@pytest.mark.parametrize(
    ("limits", "sites", "expected", "asked"),
    [
        ((1024, 4096), 10, 10, None),  # there is room
        ((1024, 65536), 1000, 1000, OTHERS + 1000 * EACH),  # it is asked for
        ((1024, 4096), 1000, (4096 - OTHERS) // EACH, 4096),  # as far as there is any
        ((1024, resource.RLIM_INFINITY), 1000, 1000, OTHERS + 1000 * EACH),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1000, 1000, None),
        ((64, 64), 1000, 1, 64),
    ],
)
def test_as_many_sites_are_open_as_there_are_files_for(
    monkeypatch: pytest.MonkeyPatch,
    limits: tuple[int, int],
    sites: int,
    expected: int,
    asked: int | None,
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(handles.resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(handles.resource, "setrlimit", lambda which, wanted: set_to.append(wanted))
    assert open_at_once(sites) == expected
    assert set_to == ([] if asked is None else [(asked, limits[1])])


def run(file: Path, out: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, int]:
    """A run that keeps so many sites open, and the most files that it had open between rounds."""
    monkeypatch.setattr(module, "open_at_once", lambda count: min(most, count))
    files = 0

    def count(metrics: dict[str, Any]) -> None:
        nonlocal files
        files = max(files, len(list(Path("/proc/self/fd").iterdir())))

    progress = Progress(round_done=count)
    outcome = simulate(load_job(file), out, source=file, insecure_seed=7, progress=progress)
    return outcome, files


def adapter_bytes(outcome: Outcome) -> bytes:
    return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.slow
def test_visited_sites_make_what_open_ones_make(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = federation(rounds=3, sites=5)
    every, open_files = run(file, tmp_path / "open", 5, monkeypatch)
    some, fewer_files = run(file, tmp_path / "visited", 2, monkeypatch)
    assert adapter_bytes(some) == adapter_bytes(every)
    assert {s["status"] for row in some.rounds for s in row["sites"].values()} == {"ok"}
    spent = {name: (b.epsilon_spent, len(b.events)) for name, b in every.budgets.items()}
    assert {name: (b.epsilon_spent, len(b.events)) for name, b in some.budgets.items()} == spent
    assert list(some.budgets) == list(every.budgets)
    assert fewer_files < open_files
    assert not list((tmp_path / "visited" / "private").glob("*/cache"))  # no clear text is left


RUN = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (260, 260))
from fedpriv.config.load import load_job
from fedpriv_simulation.simulate import simulate
file = Path(sys.argv[1])
out = simulate(load_job(file), Path(sys.argv[2]), source=file)
print({s["status"] for row in out.rounds for s in row["sites"].values()}, len(out.budgets))
"""


@pytest.mark.nightly
def test_the_files_of_a_run_do_not_grow_with_its_sites(federation: Make, tmp_path: Path) -> None:
    """Of a process that may have 260, and would need more for these sites."""
    file = federation(rounds=2, sites=60)
    command = [sys.executable, "-c", RUN, str(file), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == "{'ok'} 60"
