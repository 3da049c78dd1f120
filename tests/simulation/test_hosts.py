"""Sites in processes of their own: the same run, whatever the processes are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from fedpriv_simulation.hosts import shared_out
from fedpriv_simulation.simulate import Outcome, simulate
from tests.waiting import held_fedpriv, wait_until

Make = Callable[..., Any]


def run(file: Path, out: Path, *overrides: str) -> Outcome:
    return simulate(load_job(file, overrides), out, source=file, insecure_seed=7)


def adapter_bytes(outcome: Outcome) -> bytes:
    return (outcome.run.path / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.slow
def test_processes_make_what_threads_make(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process with more sites than it keeps open: each is opened again in every round."""
    monkeypatch.setattr("fedpriv_simulation.hosts.OPEN", 4)
    file = federation(rounds=2, sites=6)
    threads = run(file, tmp_path / "threads", "compute.workers=1")
    processes = run(file, tmp_path / "processes", "compute.workers=1", "job.engine=ray")
    assert adapter_bytes(processes) == adapter_bytes(threads)
    assert {name: (b.epsilon_spent, len(b.events)) for name, b in processes.budgets.items()} == {
        name: (b.epsilon_spent, len(b.events)) for name, b in threads.budgets.items()
    }
    assert len(processes.budgets) == 6
    assert not list((tmp_path / "processes" / "private").glob("*/cache"))


KILLING = """
import os, signal, subprocess, sys
from pathlib import Path
from fedpriv.config.load import load_job
from fedpriv_simulation import simulate as module

def kill_a_host(metrics):
    if metrics["round"] == 1:
        found = subprocess.check_output(["pgrep", "-s", "0", "ray::Host"], text=True)
        os.kill(int(found.split()[0]), signal.SIGKILL)

file = Path(sys.argv[1])
config = load_job(file, ["job.engine=ray", "job.min_sites=1", "compute.workers=2"])
out = module.simulate(config, Path(sys.argv[2]), source=file, insecure_seed=7,
                      progress=module.Progress(round_done=kill_a_host))
print([{n: s["status"] for n, s in row["sites"].items()} for row in out.rounds])
print({name: budget.events[0].count for name, budget in out.budgets.items()})
"""


@pytest.mark.slow
def test_a_process_that_dies_comes_back(federation: Make, tmp_path: Path) -> None:
    file = federation(rounds=4)
    command = [sys.executable, "-c", KILLING, str(file), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert done.returncode == 0, done.stderr
    rounds, _ = map(eval, done.stdout.splitlines()[-2:])
    assert set(rounds[0].values()) == set(rounds[-1].values()) == {"ok"}


@pytest.mark.nightly
def test_ctrl_c_leaves_a_run_to_resume_and_no_process(federation: Make, tmp_path: Path) -> None:
    file, out = federation(rounds=3), tmp_path / "run"
    command = [*held_fedpriv(tmp_path, 1), "simulate", str(file), "--out", str(out)]
    with subprocess.Popen(
        [*command, "--set", "job.engine=ray"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        wait_until(lambda: (out / "metrics.jsonl").exists() or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate()
        assert process.returncode == 130, said
    assert "--resume" in said
    assert "Traceback" not in said
    left = ["pgrep", "-as", str(process.pid)]
    wait_until(lambda: not subprocess.run(left, capture_output=True).stdout)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=40), st.integers(1, 8))
def test_every_site_has_one_process_and_none_has_much_more(sizes: list[int], count: int) -> None:
    of = shared_out(sizes, count)
    held = [sum(s for s, host in zip(sizes, of, strict=True) if host == h) for h in range(count)]
    assert len(of) == len(sizes)
    assert sum(held) == sum(sizes)
    assert max(held) - min(held) <= max(sizes)


def test_without_ray_it_says_what_to_type(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"job\.engine.*fedpriv\[simulation\]"):
        run(federation(), tmp_path / "run", "job.engine=ray")
    assert not (tmp_path / "run").exists()
