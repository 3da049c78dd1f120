"""Whatever happens to processes and wires, a job is finished and nothing is paid twice."""

from __future__ import annotations

import pytest
from network_federation import ROUNDS, Federation
from network_processes import KILLED

Totals = tuple[float, float, float, int]


def test_a_job_runs(federation: Federation, expected: Totals) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    federation.client(0)
    federation.client(1)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
    assert expected[3] == ROUNDS


@pytest.mark.parametrize("fault", ["before-reserve", "after-reserve", "after-release", "uploading"])
def test_a_client_that_is_killed_and_restarted_pays_once(
    federation: Federation, expected: Totals, fault: str
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    client = federation.client(0, fault)
    federation.client(1)
    assert client.wait() == KILLED
    federation.client(0)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.mark.parametrize("fault", ["server-waiting", "server-aggregating", "server-checkpointing"])
def test_a_server_that_is_killed_and_restarted_goes_on(
    federation: Federation, expected: Totals, fault: str
) -> None:
    federation.only(2, needed=2)
    server = federation.server(fault)
    federation.client(0)
    federation.client(1)
    assert server.wait() == KILLED
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected
