"""Whatever happens to processes and wires, a job is finished and nothing is paid twice."""

from __future__ import annotations

import pytest

from tests.network.network_federation import ROUNDS, Federation
from tests.network.network_processes import KILLED

pytestmark = pytest.mark.slow

Totals = tuple[float, float, float, int]


@pytest.mark.nightly
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
    kill_and_restart_a_client(federation, fault)
    assert federation.totals(0) == federation.totals(1) == expected


def kill_and_restart_a_client(federation: Federation, fault: str) -> None:
    """A job of two sites, of which one is killed by the fault and started again."""
    server = federation.server()
    client = federation.client(0, fault)
    federation.client(1)
    assert client.wait() == KILLED
    federation.client(0)
    federation.finish(server)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["after-reserve", "after-release"])
def test_a_round_of_several_steps_is_paid_once_whole(federation: Federation, fault: str) -> None:
    """Killed with all slots of a round reserved, or released and not sent."""
    federation.only(2, needed=2)
    federation.change(federation.file, "[job]\n", "[job]\nsync = 2\n")
    for index in range(2):
        old, new = f"max_steps = {ROUNDS}", f"max_steps = {2 * ROUNDS}"
        federation.change(federation.site_file(index), old, new)
    kill_and_restart_a_client(federation, fault)
    assert federation.states(0) == federation.states(1) == ["ok"] * ROUNDS
    assert federation.totals(0) == federation.totals(1)
    assert federation.totals(0)[3] == 2 * ROUNDS


@pytest.mark.parametrize(
    "fault", ["before-reserve", pytest.param("after-release", marks=pytest.mark.nightly)]
)
def test_a_client_that_lost_the_synthetic_set_is_sent_it_and_pays_once(
    federation: Federation, fault: str
) -> None:
    """It refuses what would change a set that it does not have any more."""
    federation.only(2, needed=2)
    federation.change(federation.file, "[job]\n", '[job]\nmethod = "pe-sgd"\n')
    federation.change(
        federation.file, "[evaluation]\n", "[synthetic]\nsize = 4\ngenerator = {}\n[evaluation]\n"
    )
    for index in range(2):
        federation.change(federation.site_file(index), '["dp-lora"]', '["pe-sgd"]')
    kill_and_restart_a_client(federation, fault)
    assert federation.states(0) == federation.states(1) == ["ok"] * ROUNDS
    assert federation.totals(0) == federation.totals(1)
    assert federation.totals(0)[3] == ROUNDS
    assert all(row["bytes_up"] < 2 * (4 * 4 + 400) for row in federation.metrics())


@pytest.mark.parametrize("fault", ["server-waiting", "server-aggregating", "server-checkpointing"])
def test_a_server_that_is_killed_and_restarted_goes_on(
    federation: Federation, expected: Totals, fault: str
) -> None:
    federation.only(2, needed=2)
    server = federation.server(fault)
    clients = [federation.client(0), federation.client(1)]
    assert server.wait() == KILLED
    server = federation.server()
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
    assert not any("this site's key" in client.text for client in clients)  # as if it were revoked
    assert "Not a reply of one's own" not in server.text  # as if it were forged
