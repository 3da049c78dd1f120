"""The Flower app, by `flwr run`: the job of `fedpriv simulate`, in Flower's own processes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fedpriv import __version__
from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.errors import ConfigError
from fedpriv.report.budget import read
from fedpriv.report.received import verify
from fedpriv_simulation.simulate import simulate
from tests.waiting import free_port, wait_until

APP = Path(__file__).parents[2] / "deploy" / "flower"
BIN = Path(sys.executable).parent
ROUNDS = 40  # more than there are before somebody who waits for the first looks again
OF_A_RUN, RAYLET = "flwr-simulation|ClientAppActor", "ray/raylet/raylet"
DEFAULTS = {"federation": "", "set": "", "out": "", "resume": False, "insecure-seed": ""}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules can be imported."""
    monkeypatch.syspath_prepend(str(APP))


def context(**given: Any) -> Context:
    config = DEFAULTS | {name.replace("_", "-"): value for name, value in given.items()}
    return Context(run_id=5, node_id=1, node_config={}, state=RecordDict(), run_config=config)


def test_flower_takes_the_app() -> None:
    """And finds nothing in it to install, which it would ask the network for."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(APP / "pyproject.toml")
    assert warnings == []
    assert config["project"]["version"] == __version__
    assert config["project"]["dependencies"] == []
    assert config["tool"]["flwr"]["app"]["config"] == DEFAULTS
    bundle = zipfile.ZipFile(io.BytesIO(build_fab_from_disk(APP)))
    held = {name for name in bundle.namelist() if name.endswith(".py")}
    assert held == {
        f"fedpriv_flower/{name}.py" for name in ("__init__", "client_app", "server_app", "settings")
    }


def test_what_the_run_config_says(
    app: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpriv_flower.settings import Settings

    monkeypatch.chdir(tmp_path)
    nothing = Settings.of(context())
    assert nothing.job() == load_job(HOSPITALS)
    assert nothing.out == tmp_path / "runs" / "flower-5"
    assert nothing.insecure_seed is None
    settings = Settings.of(
        context(
            set="job.rounds=3 sites.surgery.data='two words'",
            out="here",
            insecure_seed=0,
            resume=True,
        )
    )
    job = settings.job()
    assert (job.job.rounds, Path(job.sites[0].data).name) == (3, "two words")
    assert (settings.out, settings.resume, settings.insecure_seed) == (tmp_path / "here", True, 0)


@pytest.mark.parametrize("nodes", [2, 5])
def test_other_nodes_than_sites_are_refused(
    app: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    from fedpriv_flower import server_app

    monkeypatch.setattr(server_app, "START", 0.1)
    grid: Any = SimpleNamespace(get_node_ids=lambda: range(nodes))
    with pytest.raises(ConfigError, match=f"{nodes} nodes for the 4 sites.*num-supernodes=4"):
        server_app.app(grid, context(out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


class Flower:
    """A Flower home of its own: `flwr` in it, and whatever processes that starts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._home = folder, folder / "flower"
        ports = [str(free_port()) for _ in range(2)]
        names = ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")
        self._environment = os.environ | {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "FLWR_HOME": str(self._home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "HF_HUB_OFFLINE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "UV_OFFLINE": "1",
            **dict(zip(names, ports, strict=True)),
        }

    def __call__(self, *words: str) -> str:
        """What a command of `flwr` says."""
        done = subprocess.run(
            [str(BIN / "flwr"), *words],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def run(self, *words: str, nodes: int, **config: Any) -> str:
        """`flwr run` of the app."""
        given = [f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items()]
        sized = f"num-supernodes={nodes} client-resources-num-cpus=1"
        settings = ["--federation-config", sized, "--run-config", " ".join(given)]
        return self("run", str(APP), *settings, *words)

    def processes(self) -> dict[int, str]:
        """Those that began in this folder, or were told of this home, and their command lines.

        Ray writes other names over the environment of some, and Flower keeps no list of any.
        """
        mark, found = f"FLWR_HOME={self._home}".encode(), {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                told = mark in (process / "environ").read_bytes().split(b"\0")
                if told or (process / "cwd").readlink() == self.folder:
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(process.name)] = command
        return found

    def runs(self, pattern: str) -> bool:
        """Whether one of the processes has such a command line."""
        return any(re.search(pattern, command) for command in self.processes().values())

    @contextmanager
    def halted(self, pattern: str) -> Iterator[None]:
        """Processes with such a command line do nothing meanwhile."""
        halted = [n for n, command in self.processes().items() if re.search(pattern, command)]
        assert halted
        for process in halted:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in halted:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def end(self) -> None:
        """End what is left, politely and then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + 60
            while (left := self.processes()) and time.monotonic() < deadline:
                for process in left:
                    with suppress(ProcessLookupError):
                        os.kill(process, number)
                time.sleep(0.5)
        assert not self.processes()


@pytest.fixture
def flower(tmp_path: Path) -> Iterator[Flower]:
    if not Path("/proc/self/environ").exists():
        pytest.skip("processes are found by their environment in /proc")
    home = Flower(tmp_path)
    try:
        yield home
    finally:
        home.end()


def adapter(run: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return load_file(run / "adapter" / "adapter_model.safetensors")


@pytest.mark.nightly
def test_flwr_run_that_is_stopped_and_resumed_is_fedpriv_simulate(
    flower: Flower, federation: Callable[..., Any], tmp_path: Path
) -> None:
    file, out, overrides = federation(rounds=2), tmp_path / "run", [f"job.rounds={ROUNDS}"]
    settings = {"federation": str(file), "set": overrides[0], "out": str(out), "insecure_seed": 7}
    started = re.search(r"Successfully started run (\d+)", flower.run(nodes=2, **settings))
    assert started is not None
    wait_until((out / "metrics.jsonl").exists, flower.processes)
    with flower.halted("flwr-simulation"):  # or all rounds could be over before it is heard
        [raylet] = [number for number, command in flower.processes().items() if RAYLET in command]
        assert b"\0RAY_AUTH_MODE=token\0" in Path(f"/proc/{raylet}/environ").read_bytes()
        flower("stop", started[1])
        done = len((out / "metrics.jsonl").read_text().splitlines())
    assert 0 < done < ROUNDS
    wait_until(lambda: not flower.runs(OF_A_RUN), flower.processes)
    assert json.loads((out / "run.json").read_text())["status"] == "running"
    said = flower.run("--stream", nodes=2, resume=True, **settings)
    assert f"round   {ROUNDS}  loss" in said, said
    there = simulate(load_job(file, overrides), tmp_path / "simulate", source=file, insecure_seed=7)
    found, expected = adapter(out), adapter(there.run.path)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-6)
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert "NOT PRIVATE" in (out / "report.html").read_text()
    assert len((out / "metrics.jsonl").read_text().splitlines()) == ROUNDS
    for name, budget in there.budgets.items():
        report = read(out / "sites" / name / "budget.json")
        verify(report)
        assert report.epsilon_spent == budget.epsilon_spent
        assert [event.count for event in report.events] == [ROUNDS]  # every slot, once
        left = {path.name for path in (out / "sites" / name).iterdir()}
        assert left == {"budget.json", "ledger.db"}
    wait_until(lambda: not flower.runs(f"{OF_A_RUN}|ray::|/ray/"), flower.processes)
