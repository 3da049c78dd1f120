"""Whatever happens to processes and wires, a job is finished and nothing is paid twice."""

from __future__ import annotations

import signal

import pytest

from network_federation import ROUNDS, Federation

Totals = tuple[float, float, float, int]
KILLED = -signal.SIGKILL


def two(federation: Federation) -> None:
    """Only the first two sites take part."""
    federation.change(federation.file, '[[sites]]\nname = "site-2"\n', "")
    federation.change(federation.file, "min_sites = 1", "min_sites = 2")


def test_a_job_runs(federation: Federation, expected: Totals) -> None:
    two(federation)
    server = federation.server()
    federation.client(0)
    federation.client(1)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
    assert expected[3] == ROUNDS


@pytest.mark.parametrize(
    "fault", ["before-reserve", "after-reserve", "after-release", "uploading"]
)
def test_a_client_that_is_killed_and_restarted_pays_once(
    federation: Federation, expected: Totals, fault: str
) -> None:
    two(federation)
    server = federation.server()
    client = federation.client(0, fault)
    federation.client(1)
    assert client.wait() == KILLED
    federation.client(0)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.mark.parametrize(
    "fault", ["server-waiting", "server-aggregating", "server-checkpointing"]
)
def test_a_server_that_is_killed_and_restarted_goes_on(
    federation: Federation, expected: Totals, fault: str
) -> None:
    two(federation)
    server = federation.server(fault)
    federation.client(0)
    federation.client(1)
    assert server.wait() == KILLED
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected
