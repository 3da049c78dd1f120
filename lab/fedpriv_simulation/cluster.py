"""Ray on this machine, or on a cluster that is there already: its machines, and how to reach it.

Nothing of a cluster is started or stopped here. A cluster does whatever anybody tells it who can
reach it. So all its users have to trust each other with the sites' records, which are a
simulation's.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fedpriv.errors import ConfigError, UnreachableError

KEY = "job.ray_address"
KNOCK = 10.0  # seconds in which the address has to accept a connection
REACH = 60.0  # seconds in which a cluster has to accept us
SAME_SOFTWARE = "Install the same there, and start its Ray from that environment."
_TRY = """
import json, sys
import ray
try:
    ray.init(address=sys.argv[1], configure_logging=False, log_to_driver=False)
    print(json.dumps(None))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
_HELP = (
    "Start it with ray start --head, and on this machine, if it is another, with ray start"
    " --address=HOST:PORT; where it has a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH."
)


@dataclass(frozen=True)
class Node:
    """A machine of a cluster, or what Ray takes for a machine.

    Attributes:
        id: Ray's id of it.
        name: a name for people: host, address and the beginning of the id.
        cpus, gpus: CPUs and GPUs that Ray may give away there.
    """

    id: str
    name: str
    cpus: int
    gpus: int


@dataclass(frozen=True)
class Cluster:
    """Hold a cluster that this process is connected to.

    Attributes:
        ray: the library.
        here: the id of the node that this process is on.
        nodes: the nodes with a CPU to give away, in a fixed order.
    """

    ray: Any
    here: str
    nodes: tuple[Node, ...]

    def pinned(self, node: str) -> Any:
        """Return the scheduling strategy that puts work on that node and on no other."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node_id=node, soft=False)

    def ask_each(
        self, function: Callable[..., Any], *given: Any, within: float
    ) -> Iterator[tuple[Node, Any]]:
        """Give the result of a function on each of the nodes. All nodes compute it at once.

        Args:
            within: seconds that the nodes have.

        Raises:
            ConfigError: a node can't compute it.
            UnreachableError: a node does not answer. The message names it.
        """
        task = self.ray.remote(num_cpus=0, max_retries=0)(function)
        asked = [
            (node, task.options(scheduling_strategy=self.pinned(node.id)).remote(*given))
            for node in self.nodes
        ]
        for node, answer in asked:
            try:
                found = self.ray.get(answer, timeout=within)
            except self.ray.exceptions.RayTaskError as error:
                problem = f"node {node.name} failed at what it was asked: {error.cause}"
                raise ConfigError(problem, key=KEY, fix=SAME_SOFTWARE) from None
            except self.ray.exceptions.RayError as error:
                what = f"does not answer within {within:g} s ({type(error).__name__})"
                fix = "Look at ray status; restart that node or take it out."
                raise UnreachableError(f"{KEY}: node {node.name} {what}. {fix}") from None
            yield node, found


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a cluster for the time of a `with` block.

    Args:
        address: host:port, or auto.

    Raises:
        UnreachableError: nobody there answers, or nobody accepts us, within `REACH` seconds.
        ConfigError: the cluster has another Ray or Python; or Ray is not installed, or no CPU is
            free.
    """
    import_ray()
    reach(address)
    with _initialised(address=address) as cluster:
        nodes = (_node(found) for found in cluster.ray.nodes() if found["Alive"])
        usable = tuple(sorted((n for n in nodes if n.cpus), key=lambda node: node.id))
        if not usable:
            problem = "has no node with a CPU to give away"
            fix = "Start one with ray start --address=… --num-cpus=N."
            raise ConfigError(problem, key=KEY, value=address, fix=fix)
        yield replace(cluster, nodes=usable)


@contextmanager
def started(count: int) -> Iterator[Cluster]:
    """Run Ray on this machine for `count` processes, and for nobody else, in a `with` block.

    Raises:
        ConfigError: Ray is not installed.
    """
    guard_ray()
    with _initialised(address="local", num_cpus=count, include_dashboard=False) as cluster:
        yield cluster


@contextmanager
def _initialised(**options: Any) -> Iterator[Cluster]:
    ray = import_ray()
    ray.init(configure_logging=False, log_to_driver=False, **options)
    try:
        yield Cluster(ray, ray.get_runtime_context().get_node_id(), ())
    finally:
        ray.shutdown()


def reach(address: str, within: float = REACH) -> None:
    """Try a cluster from a separate process.

    Ray itself waits for minutes, and then ends its process.

    Raises:
        UnreachableError: nobody there answers, or nobody accepts us.
        ConfigError: the cluster has another Ray or Python.
    """
    if address != "auto":
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
        except OSError as error:
            raise _unreachable(address, f"nobody listens there ({error})") from None
    command, quiet = [sys.executable, "-c", _TRY, address], subprocess.DEVNULL
    try:
        tried = subprocess.run(command, stdin=quiet, capture_output=True, text=True, timeout=within)
    except subprocess.TimeoutExpired:
        raise _unreachable(
            address, f"no Ray cluster accepted this process within {within:g} s"
        ) from None
    try:
        problem = json.loads(tried.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = tried.stderr.strip().splitlines() or ["nothing"]
        raise _unreachable(address, f"Ray ended and said {said[-1]!r}") from None
    if problem is not None:
        raise _refused(address, *problem)


def _refused(address: str, kind: str, text: str) -> Exception:
    said = " ".join(text.split())
    if "version mismatch" in said.lower():
        problem = f"has another Ray or Python than this process: {said}"
        fix = "Install the same on all machines, and start the cluster from there."
        return ConfigError(problem, key=KEY, value=address, fix=fix)
    return _unreachable(address, f"Ray says {kind}: {said}")


def _unreachable(address: str, why: str) -> UnreachableError:
    return UnreachableError(f"{KEY}: {address!r} can't be used: {why}. {_HELP}")


def _node(found: dict[str, Any]) -> Node:
    there, host, address = found["Resources"], found["NodeManagerHostname"], found["NodeName"]
    name = f"{host} ({address}, {found['NodeID'][:8]})"
    return Node(found["NodeID"], name, int(there.get("CPU", 0)), int(there.get("GPU", 0)))


def guard_ray() -> None:
    """Let Ray answer nobody but us, because it listens on ports and does what it is told there.

    Call it before Ray is started.
    """
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def import_ray() -> Any:
    """Import Ray, which is installed with an extra.

    Raises:
        ConfigError: Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        fix = "Type: pip install 'fedpriv[simulation]', or set engine = \"inline\"."
        raise ConfigError("is not installed", key="job.engine", value="ray", fix=fix) from None
    return ray
