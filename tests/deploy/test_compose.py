"""The demo of deploy/compose: prepared by its own script, run as compose.yaml says, without Docker.

There is no engine here that would make containers. A service's entry point and command are started
in the folder that would be mounted at its working directory, with its environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.dockerfile import FILE, ROOT, entry_point, stages
from tests.network.network_processes import Command, forking
from tests.waiting import free_port, wait_until

SOURCE = ROOT / "deploy" / "compose"
SITES = ("general-medicine", "radiology", "surgery")
BIN = str(Path(sys.executable).parent)
HEALTH_WORDS = ("interval", "timeout", "start_period")


def compose(variables: dict[str, str]) -> dict[str, Any]:
    """The file with its variables filled in, as Compose does it."""

    def value(match: re.Match[str]) -> str:
        name, kind, other = match.groups()
        if kind == ":?":
            return variables[name]
        return variables.get(name) or other or ""

    text = (SOURCE / "compose.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{(\w+)(?:(:\?|:-)([^}]*))?\}", value, text))
    return found


FILLED = compose({"FEDPRIV_USER": "1000:1000"})
SERVICES: dict[str, dict[str, Any]] = FILLED["services"]


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Where a service sees which folder, and whether it may write there."""
    split = [volume.split(":") for volume in service["volumes"]]
    return {parts[1]: (parts[0], parts[2:] != ["ro"]) for parts in split}


def test_the_file_has_a_server_and_three_sites() -> None:
    assert set(FILLED) == {"name", "services", "networks", "x-process", "x-build", "x-site"}
    assert set(SERVICES) == {"server", *SITES}
    for name, service in SERVICES.items():
        target = "server" if name == "server" else "client"
        build = service["build"]
        assert (SOURCE / build["context"]).resolve() == ROOT
        assert ROOT / build["dockerfile"] == FILE
        assert build["target"] == target
        assert build["target"] in stages()
        arguments = {text.partition("=")[0] for one in stages().values() for text in one.all("ARG")}
        assert set(build["args"]) <= arguments | {"VARIANT"}
        assert service["image"] == f"fedpriv-{target}:cpu"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_little(name: str) -> None:
    service = SERVICES[name]
    assert service["user"] == "1000:1000"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp:size=256m"]
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert service["environment"]["OMP_NUM_THREADS"] == limits["cpus"]
    assert not {"privileged", "cap_add", "devices", "ports", "network_mode", "pid"} & set(service)
    written = {target for target, (_, may_write) in mounts(service).items() if may_write}
    assert written == {"/fedpriv/run" if name == "server" else "/fedpriv/state"}
    assert all(source.startswith(f"./demo/{name}") for source, _ in mounts(service).values())


def test_a_service_is_not_started_again_for_ever() -> None:
    """Codes 2 to 6 and 130 are not 0, so that only a limit stops it."""
    for service in SERVICES.values():
        policy, _, most = service["restart"].partition(":")
        assert policy == "on-failure"
        assert 0 < int(most) <= 5


def test_a_site_reaches_the_server_alone() -> None:
    networks: dict[str, dict[str, Any]] = FILLED["networks"]
    assert all(network == {"internal": True} for network in networks.values())
    for name in SITES:
        (network,) = SERVICES[name]["networks"]
        there = {other for other, one in SERVICES.items() if network in one["networks"]}
        assert there == {"server", name}
        assert SERVICES[name]["depends_on"] == ["server"]


@pytest.mark.parametrize("name", SERVICES)
def test_health_is_asked_of_the_status(name: str) -> None:
    service = SERVICES[name]
    how, *words = service["healthcheck"]["test"]
    assert how == "CMD"
    assert words[:2] == [*entry_point(service["build"]["target"]), "status"]
    assert words[-1] == "--probe"
    assert set(service["healthcheck"]) == {"test", *HEALTH_WORDS}
    for key in HEALTH_WORDS:
        assert re.fullmatch(r"\d+s", service["healthcheck"][key])


@dataclass
class Demo:
    """What `prepare` made, and the services that were started in it."""

    folder: Path
    services: dict[str, dict[str, Any]]
    running: dict[str, Command]
    context: Any

    def place(self, name: str) -> Path:
        """The folder that a service works in."""
        service = self.services[name]
        source, _ = mounts(service)[service["working_dir"]]
        return self.folder / source

    def start(self, name: str, *more: str) -> Command:
        service = self.services[name]
        words = [*entry_point(service["build"]["target"]), *service["command"], *more]
        self.running[name] = Command(
            self.context,
            words,
            self.folder / f"{name}.log",
            folder=self.place(name),
            environment=service["environment"],
        )
        return self.running[name]

    def is_healthy(self, name: str) -> bool:
        _, *words = self.services[name]["healthcheck"]["test"]
        asked = subprocess.run(
            words, cwd=self.place(name), env=environment(), capture_output=True, text=True
        )
        assert (asked.stdout, asked.stderr) == ("", "")
        return asked.returncode == 0

    def files(self, name: str) -> dict[Path, bytes]:
        """What is where the service may not write."""
        writable = [
            self.folder / source
            for source, may_write in mounts(self.services[name]).values()
            if may_write
        ]
        return {
            path: path.read_bytes()
            for path in self.place(name).rglob("*")
            if path.is_file() and not any(path.is_relative_to(one) for one in writable)
        }


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"} | more


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("compose")
    shutil.copy2(SOURCE / "prepare", folder)
    address = f"localhost:{free_port()}"
    made = subprocess.run(
        [folder / "prepare"],
        env=environment(FEDPRIV_ADDRESS=address),
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    variables = dict(
        line.split("=", 1) for line in (folder / ".env").read_text().splitlines() if line
    )
    started = Demo(folder, compose(variables)["services"], {}, forking())
    yield started
    for command in started.running.values():
        if command.code is None:
            command.kill()


@pytest.mark.nightly
def test_what_is_prepared_is_where_it_belongs(demo: Demo) -> None:
    user, _, group = demo.services["server"]["user"].partition(":")
    assert 0 not in (int(user), int(group))
    for name, service in demo.services.items():
        for source, _ in mounts(service).values():
            assert (demo.folder / source).is_dir()
        for key in demo.place(name).rglob("*.key"):
            assert key.stat().st_mode & 0o077 == 0
            assert key.stat().st_uid == int(user)
    server = {path.name for path in demo.place("server").rglob("*")}
    assert {"server.key", "sites.json"} <= server
    assert not server & {"ca.key", "site.key", "notes.jsonl.gz", "enrolments"}
    again = subprocess.run([demo.folder / "prepare"], env=environment(), capture_output=True)
    assert again.returncode == 1
    assert b"is there already" in again.stderr


@pytest.mark.nightly
def test_the_demo_runs_its_job(demo: Demo) -> None:
    """Two rounds of it; then the sites are stopped as an engine stops them."""
    from fedpriv.config.load import load_site
    from fedpriv.privacy.ledger.ledger import Ledger
    from fedpriv.report import budget, received
    from fedpriv_client.settings import ledgers

    before = {name: demo.files(name) for name in demo.services}
    server = demo.start("server", "--set", "job.rounds=2", "--set", "evaluation.limit=8")
    for name in SITES:
        demo.start(name)
    wait_until(lambda: demo.is_healthy("surgery"), lambda: demo.running["surgery"].text)
    assert server.wait() == 0, server.text
    assert demo.is_healthy("server")
    run = demo.place("server") / "run"
    assert json.loads((run / "run.json").read_text())["status"] == "finished"
    wait_until(lambda: not demo.is_healthy("surgery"))  # nobody is there any more
    for name in SITES:
        demo.running[name].signal(signal.SIGTERM)
    for name in SITES:
        assert demo.running[name].wait() == 130, demo.running[name].text
    assert {name: demo.files(name) for name in demo.services} == before

    job = json.loads((run / "run.json").read_text())["job_id"]
    for name in SITES:
        report = budget.read(run / "sites" / name / "budget.json")
        received.verify(report)
        (path,) = ledgers(load_site(demo.place(name) / "site.toml")).values()
        with Ledger.open(path, reading=True) as ledger:
            assert len(list(ledger.slots(job))) == 2
            for key in ("epsilon_spent", "epsilon_allocated", "epsilon_committed"):
                assert getattr(report, key) == pytest.approx(getattr(ledger, key))
        assert sum(event.count for event in report.events) == 2
        # What the file proposes for the job; the rule rdp, which serves all jobs, charges more.
        assert 3.9 < report.epsilon_spent <= 4.0
        assert report.epsilon_spent <= report.epsilon_allocated <= report.epsilon_committed
        assert report.epsilon_committed == report.budget == 8.0
