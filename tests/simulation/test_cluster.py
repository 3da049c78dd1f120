"""A simulation on several nodes: the same run, and one writer of each ledger, whatever is lost."""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import ConfigError, UnreachableError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv_simulation.cluster import _refused, reach
from tests.simulation.ray_nodes import MARK, Cluster, environment
from tests.waiting import held_fedpriv, wait_until

Make = Callable[..., Any]
FEDPRIV = str(Path(sys.executable).parent / "fedpriv")
ROUNDS, SITES = 10, 4
# A site's own function, which tells where it is called, and changes nothing.
TELLING = f"""
import os
from pathlib import Path

def tell(text):
    node = os.environ.get({MARK!r})
    if node:
        with (Path(os.environ["TOLD"]) / node).open("a") as file:
            file.write(text + "\\n")
    return text
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module of `tell`, into which that writes."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "telling.py").write_text(TELLING)
    return folder


@pytest.fixture(scope="module")
def cluster(told: Path) -> Iterator[Cluster]:
    found = Cluster(PYTHONPATH=str(told), TOLD=str(told))
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, federation_in: Make) -> Path:
    found: Path = federation_in(tmp_path_factory.mktemp("f") / "in", rounds=ROUNDS, sites=SITES)
    text = found.read_text().replace("size = 24", 'size = 24\ntransform = "telling:tell"')
    found.write_text(text)
    return found


def start(
    file: Path,
    out: Path,
    told: Path,
    *overrides: str,
    resume: bool = False,
    program: Sequence[str] = (FEDPRIV,),
) -> subprocess.Popen[str]:
    more = [word for override in overrides for word in ("--set", override)]
    more += ["--resume"] * resume
    return subprocess.Popen(
        [*program, "simulate", str(file), "--out", str(out), "--insecure-seed", "7", *more],
        cwd=told,  # to which Ray's workers look first: not where the source is
        env=environment(PYTHONPATH=str(told)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output


def on(cluster: Cluster) -> list[str]:
    return ["job.engine=ray", f"job.ray_address={cluster.address}"]


@pytest.fixture(scope="module")
def inline(file: Path, told: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process."""
    out = tmp_path_factory.mktemp("inline") / "run"
    finished(start(file, out, told, "compute.workers=1"))
    return out


def made(out: Path) -> bytes:
    return (out / "adapter" / "adapter_model.safetensors").read_bytes()


def paid(out: Path) -> dict[str, Any]:
    """Of each ledger, all that it says it has paid for and let out."""
    found = {}
    for number in range(SITES):
        with Ledger.open(out / "sites" / f"site-{number}" / "ledger.db", reading=True) as ledger:
            rows = [(row.kind, row.body.get("slot")) for row in ledger.rows()]
            [job] = {row.body["job"] for row in ledger.rows() if "job" in row.body}
            assert ledger.slots(job) == [(slot, True) for slot in range(ROUNDS)]
            found[f"site-{number}"] = (ledger.epsilon_committed, ledger.epsilon_spent, rows)
    return found


def wait_for_rounds(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    metrics = out / "metrics.jsonl"

    def are_there() -> bool:
        assert process.poll() is None, process.communicate()
        return metrics.exists() and len(metrics.read_text().splitlines()) >= count

    wait_until(are_there)


@pytest.mark.nightly
def test_two_nodes_make_what_threads_make(
    cluster: Cluster, file: Path, inline: Path, told: Path, tmp_path: Path
) -> None:
    second, out = cluster.add(), tmp_path / "run"
    try:
        finished(start(file, out, told, *on(cluster)))
    finally:
        cluster.remove(second)
    assert made(out) == made(inline)
    assert paid(out) == paid(inline)
    read = {node.name: set(node.read_text().splitlines()) for node in told.glob("?" * 32)}
    assert len(read) == 2  # each node read the records of its sites
    assert set.intersection(*read.values()) < min(read.values(), key=len)
    assert cluster.address.rpartition(":")[2] not in (out / "run.json").read_text()
    assert not list((out / "private").glob("seen-*"))
    assert not list((out / "private").glob("*/cache"))


def lines(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def assert_nothing_was_missed_or_paid_twice(out: Path, inline: Path) -> None:
    assert all(site["status"] == "ok" for row in lines(out) for site in row["sites"].values())
    assert made(out) == made(inline)
    assert paid(out) == paid(inline)


@pytest.mark.slow
def test_a_run_that_loses_a_node_and_then_its_driver_is_resumed_and_pays_nothing_twice(
    cluster: Cluster, file: Path, inline: Path, told: Path, tmp_path: Path
) -> None:
    """Each as without power; it is resumed where the other node is."""
    second, out = cluster.add(), tmp_path / "run"
    places = [*on(cluster), f"job.min_sites={SITES}"]
    try:
        run = start(file, out, told, *places, program=held_fedpriv(tmp_path, 2))
        wait_for_rounds(out, 2, run)
        second.signal(signal.SIGKILL)
        (tmp_path / "2").touch()
        output, _ = run.communicate()
        assert run.returncode != 0 and "Traceback" not in output
        assert 2 <= len(lines(out)) <= 3
        held = held_fedpriv(tmp_path, 6)
        run = start(file, out, told, *places, resume=True, program=held)
        wait_for_rounds(out, 6, run)
        run.kill()
        run.communicate()
        finished(start(file, out, told, *places, resume=True))
    finally:
        cluster.remove(second)
    assert_nothing_was_missed_or_paid_twice(out, inline)


DIFFERENT = {
    "the run directory is not shared": ("--out", "all machines share", "mount -t tmpfs none {out}"),
    "another fedpriv": ("job.ray_address", "failed at what it was asked", ""),
}


@pytest.mark.nightly
@pytest.mark.parametrize("what", list(DIFFERENT))
def test_a_node_that_is_different_is_named_before_anything_is_spent(
    cluster: Cluster, federation: Make, told: Path, tmp_path: Path, what: str
) -> None:
    """tests/simulation/test_node_checks.py has all that may be different."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    folder, older = tmp_path / "here", tmp_path / "older" / "fedpriv"
    older.mkdir(parents=True)
    (older / "__init__.py").write_text('__version__ = "0.0.1"\n')
    folder.mkdir()
    key, words, command = DIFFERENT[what]
    env = {} if command else {"PYTHONPATH": f"{older.parent}:{told}"}
    node = cluster.add(command.format(out=shlex.quote(str(folder))), **env)
    try:
        run = start(federation(rounds=1), folder / "run", told, *on(cluster))
        output, _ = run.communicate()
    finally:
        cluster.remove(node)
    said = " ".join(output.split())
    assert run.returncode == 2, output
    assert key in said
    assert "node " in said
    assert words in said
    assert not (folder / "run").exists()


@pytest.mark.nightly
def test_an_address_at_which_nobody_or_somebody_else_answers(
    federation: Make, tmp_path: Path, told: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        out = tmp_path / "run"
        places = "job.engine=ray", f"job.ray_address={address}"
        run = start(federation(), out, told, *places)
        output, _ = run.communicate()
        assert run.returncode == 3
        assert address in output
        assert "nobody listens there" in output
        assert not out.exists()
        taken.listen()
        with pytest.raises(
            UnreachableError, match=r"no Ray cluster accepted this process within 5 s.*ray start"
        ):
            reach(address, within=5)


@pytest.mark.nightly
def test_a_token_that_the_cluster_does_not_take(
    cluster: Cluster, federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment(RAY_AUTH_TOKEN="0" * 64).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnreachableError, match=r"RAY_AUTH_TOKEN_PATH"):
        reach(cluster.address)


def test_another_ray_or_python_is_told() -> None:
    said = (  # of Ray 2.55, to a driver of another Python
        "Version mismatch: The cluster was started with:\n    Ray: 2.55.1\n    Python: 3.12.3\n"
        "This process on node 10.0.0.2 was started with:\n    Ray: 2.55.1\n    Python: 3.11.9\n"
    )
    error = _refused("10.0.0.1:6379", "RuntimeError", said)
    assert isinstance(error, ConfigError)
    assert "Python: 3.12.3" in str(error)
    assert "job.ray_address" in str(error)
