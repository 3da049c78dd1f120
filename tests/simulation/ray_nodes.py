"""Nodes of a Ray cluster, as processes of this machine, each with a mark by which it is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import CEILING, free_port, wait_until

MARK = "FEDPRIV_TEST_NODE"
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2}
# A node that is gone is noticed within seconds, and one that is cut off in half a minute.
QUICK = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "8000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_raylet_start_wait_time_s": f"{CEILING:.0f}",  # by default half a minute
    "RAY_worker_niceness": "0",  # by default 15 below its raylet: on a busy machine, hardly ever
}
SMALL = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]


def environment(**further: str) -> dict[str, str]:
    """What a node and a driver of the tests' cluster have in their environment."""
    return os.environ | TOKEN | QUICK | {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"} | further


@dataclass
class Node:
    """Started when it is made; use `kill` in the end."""

    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    before: str = ""

    def __post_init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.known: set[int] = set()
        ray = str(Path(sys.executable).parent / "ray")
        start = [ray, "start", *self.command, *SMALL, "--block"]
        if self.before:  # in a view of the file system of its own
            start = ["unshare", "--mount", "sh", "-ec", f'{self.before}\nexec "$0" "$@"', *start]
        self.process = subprocess.Popen(
            start,
            env=environment(**self.env) | {MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        said = []
        for line in self.process.stdout:
            said.append(line)
            if "Ray runtime started" in line:
                return
        raise AssertionError("".join(said))

    def processes(self) -> list[int]:
        """Every process of the node. Ray writes names over the environment of some, which are known
        by their parents."""
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if fields[0] == "Z":
                        continue
                    parents[int(entry.name)] = int(fields[1])
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        self.known.add(int(entry.name))
        while further := {p for p, of in parents.items() if of in self.known} - self.known:
            self.known |= further
        return [process for process in self.known if process in parents]

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def kill(self) -> None:
        """As when a machine loses its power."""
        wait_until(lambda: not self.processes() or self.signal(signal.SIGKILL))
        self.process.wait()


class Cluster:
    """A head with one CPU, and the nodes that are added to it.

    Args:
        env: of every node, beside what this process has.
    """

    def __init__(self, **env: str) -> None:
        self.env = env
        self.address = f"127.0.0.1:{(port := free_port())}"
        self.nodes = [
            Node(
                [
                    *("--head", f"--port={port}", "--include-dashboard=false"),
                    *("--node-ip-address=127.0.0.1", f"--ray-client-server-port={free_port()}"),
                ],
                env,
            )
        ]

    def add(self, before: str = "", **env: str) -> Node:
        """A further node of one CPU.

        Args:
            before: commands of a shell that change the file system as this node alone sees it.
        """
        there = [f"--address={self.address}", "--node-ip-address=127.0.0.1"]
        node = Node(there, self.env | env, before)
        self.nodes.append(node)
        return node

    def remove(self, node: Node) -> None:
        """Kill a node, and wait until the cluster knows."""
        node.kill()
        self.nodes.remove(node)
        self.wait_for(len(self.nodes))

    def wait_for(self, alive: int) -> None:
        """Wait until the cluster has so many nodes."""
        count = (
            "import ray, sys, time\n"
            f"ray.init({self.address!r}, configure_logging=False, log_to_driver=False)\n"
            f"while sum(n['Alive'] for n in ray.nodes()) != {alive}: time.sleep(0.2)\n"
        )
        subprocess.run([sys.executable, "-c", count], env=environment(), check=True)

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
