"""What people are told while a job waits, is refused, runs on a full disk, or is over."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.network.network_federation import Federation

WAITS = "waits for a person's yes (paused)"
TOO_FEW = 5  # exit code
pytestmark = pytest.mark.slow


def test_who_waits_for_a_person_is_named_and_is_no_error(federation: Federation) -> None:
    federation.only(2, needed=2)
    for site in (0, 1):
        federation.change(federation.site_file(site), "[allow]", '[allow]\napprove = "ask"')
    server = federation.server()
    clients = [federation.client(site) for site in (0, 1)]
    said = f"(job.min_sites). site-0: {WAITS}, site-1: {WAITS}."
    federation.until(state="waiting", problem=said)
    assert [site["last"] for site in federation.server_status()["sites"].values()] == [WAITS] * 2
    assert [client.text.count("ERROR") for client in clients] == [0, 0]
    assert "WARNING" not in server.text


def test_a_limit_is_named_to_the_coordinator_and_at_the_site(federation: Federation) -> None:
    federation.only(1, needed=1)
    federation.change(federation.site_file(0), "max_steps = 3", "max_steps = 2")
    server = federation.server()
    federation.client(0)
    assert server.wait() == TOO_FEW
    assert "site-0: refused: max-steps (LimitError)" in server.text
    federation.until(0, refusal="max-steps (LimitError)")
    assert "refusal: max-steps (LimitError)" in federation.ask(0, "status").stdout


@pytest.fixture
def disk(federation: Federation) -> Iterator[Path]:
    """A disk of its own for a site's folder, where this machine lets a test mount one."""
    state = federation.site_file(0).parent / "state"
    kept = shutil.copytree(state, federation.folder / "kept")
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m,mode=700", "none", str(state)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a disk")
    shutil.copytree(kept, state, dirs_exist_ok=True)
    yield state
    federation.stop()
    subprocess.run(["umount", str(state)], check=True)


def test_a_full_disk_is_named_at_the_site_alone(federation: Federation, disk: Path) -> None:
    federation.only(1, needed=1)
    client = federation.client(0)
    federation.until(0, connection="waiting")  # for the server: the disk is reserved by now
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while filler.write(bytes(1 << 16)):
            pass
    assert f"problem: {disk}: the disk is full (0 bytes" in federation.ask(0, "status").stdout
    server = federation.server()
    assert server.wait() == 0
    assert f"{disk}: the disk is full (" in client.text
    assert "is full" not in server.text


def test_a_job_that_is_over_is_finished_at_its_site(federation: Federation) -> None:
    federation.only(1, needed=1)
    server = federation.server()
    client = federation.client(0)
    assert server.wait() == 0
    federation.until(0, connection="waiting", activity="waiting for the next job", problem="")
    [job] = json.loads(federation.ask(0, "jobs", "--json").stdout)
    assert job["state"] == "finished"
    assert "WARNING Connection" not in client.text
