"""Messages get lost, come twice, late or cut in two; nothing is lost or paid twice for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.network.network_federation import Federation
from tests.network.network_processes import KILLED, Command
from tests.network.network_proxy import Cable
from tests.waiting import wait_until

Totals = tuple[float, float, float, int]
slow = pytest.mark.slow
MOMENT = 3.0  # seconds of a fault within the presence's patience; nothing is expected of them


def begin_and_hold(federation: Federation, **options: Any) -> Command:
    """Start two sites; a round is done, the second holds the next one. Gives the first."""
    client = federation.client(0, **options)
    federation.client(1, "held")
    wait_until(lambda: federation.rounds() == 1)
    return client


def missing(federation: Federation, is_missed: bool) -> None:
    """Let a fault last for a moment, or until the server misses the first site."""
    if is_missed:
        federation.until(problem="Waiting for site-0")
    else:
        time.sleep(MOMENT)


@slow
@pytest.mark.parametrize("fault", ["lost-reply", "lost-request", "replayed"])
def test_what_a_site_sends_or_is_sent_is_lost_or_copied(
    federation: Federation, expected: Totals, fault: str
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    federation.client(0, fault)
    federation.client(1)
    federation.finish(server)
    assert federation.struck("site-0", fault)
    assert federation.states(0) == federation.states(1) == ["ok"] * 3
    assert federation.totals(0) == federation.totals(1) == expected


@slow
@pytest.mark.parametrize("fault", ["twice", "reordered"])
def test_messages_come_more_than_once_and_in_another_order(
    federation: Federation, expected: Totals, fault: str
) -> None:
    federation.only(2, needed=2)
    server = federation.server(fault)
    federation.client(0)
    federation.client(1)
    federation.finish(server)
    assert federation.struck("server", fault)
    assert federation.totals(0) == federation.totals(1) == expected


@slow
def test_connections_break_in_the_middle_of_uploads(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=2)
    proxy = federation.proxy(0)
    proxy.cut_uploads(3)
    server = federation.server()
    client = federation.client(0)
    federation.client(1)
    federation.finish(server)
    assert proxy.cuts == 3
    assert "Connection lost" in client.text
    assert federation.totals(0) == federation.totals(1) == expected


@slow
@pytest.mark.parametrize("missed", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_wire_goes_dead_and_heals(federation: Federation, expected: Totals, missed: bool) -> None:
    """For a moment, or until the site is missed and waited for."""
    federation.only(2, needed=2)
    proxy = federation.proxy(0)
    server = federation.server()
    begin_and_hold(federation)
    proxy.block()
    federation.let_go(1)
    missing(federation, missed)
    proxy.heal()
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.mark.nightly
def test_a_dead_wire_is_cut_while_it_is_dead(federation: Federation, expected: Totals) -> None:
    federation.only(2, needed=2)
    proxy = federation.proxy(0)
    server = federation.server()
    begin_and_hold(federation)
    proxy.block()
    federation.let_go(1)
    proxy.cut()
    federation.until(0, connection="lost")
    proxy.heal()
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.fixture
def cable(federation: Federation) -> Iterator[Cable]:
    """Leads to the first site, where this machine lets a test make networks."""
    try:
        made = Cable()
    except OSError as error:
        pytest.skip(f"no network namespaces: {error}")
    federation.change(federation.file, "[server]\n", f'[server]\nnames = ["{made.host}"]\n')
    federation.provision()
    federation.move(0, f"{made.host}:{federation.port}")
    yield made
    federation.stop()
    made.close()


@slow
@pytest.mark.parametrize("missed", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_cable_is_pulled_and_plugged_in(
    federation: Federation, expected: Totals, cable: Cable, missed: bool
) -> None:
    """Packets vanish: neither side is told, and both find out by themselves."""
    federation.only(2, needed=2)
    server = federation.server()
    begin_and_hold(federation, namespace=cable.namespace)
    cable.pull()
    federation.let_go(1)
    missing(federation, missed)
    cable.plug()
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.mark.nightly
def test_a_cable_is_pulled_for_good(federation: Federation, expected: Totals, cable: Cable) -> None:
    federation.only(2, needed=1)
    server = federation.server()
    begin_and_hold(federation, namespace=cable.namespace)
    cable.pull()
    federation.let_go(1)
    federation.finish(server)
    assert federation.states(0)[-1] == "absent"
    assert federation.totals(1) == expected


@pytest.mark.nightly
def test_server_and_client_are_both_killed_and_restarted(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=2)
    server = federation.server("server-aggregating")
    client = federation.client(0, "after-release")
    federation.client(1)
    assert client.wait() == KILLED
    federation.client(0)
    assert server.wait() == KILLED
    federation.finish(federation.server())
    assert federation.totals(0) == federation.totals(1) == expected


@slow
def test_a_client_is_killed_and_restarted_at_once(federation: Federation, expected: Totals) -> None:
    """No lease of its predecessor stands in its way."""
    federation.only(2, needed=2)
    server = federation.server()
    client = begin_and_hold(federation)
    client.kill()
    heir = federation.client(0)
    federation.until(0, pid=str(heir.pid), connection="connected")
    federation.let_go(1)
    federation.finish(server)
    assert heir.text.count("Connected to") == 2  # its own, and its predecessor's in the same log
    assert federation.totals(0) == federation.totals(1) == expected


@slow
def test_a_second_process_of_a_site_does_not_disturb_the_first(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    first = federation.client(0)
    federation.client(1)
    federation.until(0, connection="connected")
    second = federation.run(
        "fedpriv-client", "--config", str(federation.site_file(0)), name="second"
    )
    assert second.wait() == 6
    assert "another process works in it already" in second.text
    federation.finish(server)
    assert first.text.count("Connected to") == 1
    assert federation.totals(0) == federation.totals(1) == expected
