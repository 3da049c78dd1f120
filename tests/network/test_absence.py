"""Sites that are gone, slow, late, paused or unwilling: the others go on, or wait by name."""

from __future__ import annotations

import json
import time

import pytest

from fedpriv_server.long_poll import PATIENCE
from tests.network.network_federation import Federation
from tests.network.network_processes import KILLED
from tests.waiting import wait_until

Totals = tuple[float, float, float, int]
pytestmark = pytest.mark.slow


def test_a_site_is_gone_for_good(federation: Federation, expected: Totals) -> None:
    """It is missed after the presence's patience, not at the round's deadline in an hour."""
    federation.only(2, needed=1)
    server = federation.server()
    client = federation.client(0, "after-reserve")
    federation.client(1)
    assert client.wait() == KILLED
    gone = time.monotonic()
    federation.finish(server)
    assert time.monotonic() - gone > 0.9 * PATIENCE
    assert federation.states(0) == ["ok", "no reply", "absent"]
    assert federation.states(1) == ["ok"] * 3
    assert federation.totals(1) == expected
    committed, allocated, spent, slots = federation.totals(0)
    assert (committed, allocated) == expected[:2]  # a plan stays charged
    assert spent == federation.metrics()[1]["sites"]["site-1"]["epsilon_spent"]
    assert slots == 2  # the second was reserved before the end, and never released


@pytest.mark.nightly
def test_a_site_is_behind_a_dead_wire(federation: Federation, expected: Totals) -> None:
    federation.only(2, needed=1)
    proxy = federation.proxy(0)
    server = federation.server()
    federation.client(0)
    federation.client(1, "held")
    wait_until(lambda: federation.rounds() == 1)
    proxy.block()
    federation.let_go(1)
    federation.finish(server)
    states = federation.states(0)
    assert "absent" in states or "no reply" in states
    assert federation.totals(1) == expected


def test_a_site_stands_still_and_goes_on(federation: Federation, expected: Totals) -> None:
    """Suspended, its connections stay open: nothing tells the server but silence."""
    federation.only(2, needed=2)
    server = federation.server()
    client = federation.client(0)
    federation.client(1, "held")
    wait_until(lambda: federation.rounds() == 1)
    client.suspend()
    federation.let_go(1)
    federation.until(problem="Waiting for site-0")
    client.go_on()
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


def test_a_site_is_slower_than_the_round(federation: Federation, expected: Totals) -> None:
    """What it answers too late is paid and not used; then it takes part again."""
    federation.only(2, needed=1)
    federation.change(federation.file, 'round_timeout = "1h"', 'round_timeout = "20s"')
    server = federation.server()
    federation.client(0, "held")
    federation.client(1)
    wait_until(lambda: federation.rounds() == 2)
    federation.let_go(0)
    federation.finish(server)
    assert federation.states(0) == ["ok", "no reply", "ok"]
    assert federation.states(1) == ["ok"] * 3
    assert federation.totals(0) == federation.totals(1) == expected


def test_too_few_sites_are_waited_for_by_name(federation: Federation, expected: Totals) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    client = federation.client(0, "before-reserve")
    federation.client(1)
    assert client.wait() == KILLED
    problem = "Waiting for site-0; 1 there."
    federation.until(problem=problem)
    status = federation.server_status()
    assert status["state"] == "waiting"
    assert [site["there"] for site in status["sites"].values()] == [False, True]
    federation.client(0)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
    assert federation.server_status()["state"] == "finished"


@pytest.mark.nightly
def test_a_site_joins_a_job_that_runs(federation: Federation, expected: Totals) -> None:
    """It pays for the slots it was asked for, out of a plan for all."""
    federation.only(2, needed=1)
    federation.change(federation.file, 'wait = "1h"', 'wait = "1s"')
    server = federation.server("patient")
    federation.client(0, "held")
    wait_until(lambda: federation.rounds() == 1)
    federation.client(1)
    federation.until(1, connection="connected")
    federation.let_go(0)
    federation.finish(server)
    assert federation.states(0) == ["ok"] * 3
    assert federation.totals(0) == expected
    joined = [row["sites"].get("site-1") for row in federation.metrics()]
    assert joined[:2] == [None, None]
    assert joined[2]["status"] == "ok"
    committed, allocated, spent, slots = federation.totals(1)
    assert (committed, allocated) == expected[:2]
    assert spent == federation.metrics()[0]["sites"]["site-0"]["epsilon_spent"]
    assert slots == 1


@pytest.mark.nightly
def test_an_administrator_pauses_a_site_and_lets_it_go_on(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=2)
    server = federation.server()
    federation.client(0, "held")
    federation.client(1)
    federation.until_paid(1, 2)
    assert "paused" in federation.ask(1, "pause").stdout
    assert json.loads(federation.ask(1, "status", "--json").stdout)["paused"] is True
    federation.let_go(0)
    federation.until(problem="site-1: waits for a person's yes (paused)")
    assert "Asking again" in server.text
    assert federation.ask(1, "resume").exit_code == 0
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.mark.nightly
def test_an_administrator_refuses_a_job(federation: Federation, expected: Totals) -> None:
    federation.only(2, needed=1)
    server = federation.server()
    federation.client(0, "held")
    federation.client(1)
    federation.until_paid(1, 2)
    job = federation.server_status()["job"]
    assert job in federation.ask(1, "refuse", job).stdout
    federation.let_go(0)
    federation.finish(server)
    assert federation.states(0) == ["ok"] * 3
    assert federation.states(1) == ["ok", "ok", "refused: refused (JobRefusedError)"]
    assert federation.totals(0) == expected
    committed, allocated, spent, slots = federation.totals(1)
    assert (committed, allocated) == expected[:2]
    assert spent == federation.metrics()[1]["sites"]["site-0"]["epsilon_spent"]
    assert slots == 2  # the third was refused before it was paid


@pytest.mark.nightly
def test_a_site_is_paused_before_the_job_and_joins_when_it_is_resumed(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=2)
    federation.ask(1, "pause")
    server = federation.server()
    federation.client(0)
    federation.client(1)
    federation.until(problem="1 sites accept the job")
    assert "takes no part for now: waits for a person's yes" in server.text
    federation.ask(1, "resume")
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected


@pytest.mark.nightly
def test_a_job_waits_until_somebody_at_a_site_has_approved_it(
    federation: Federation, expected: Totals
) -> None:
    """The server goes on asking, as it asks a site that is paused; the yes outlives a restart."""
    federation.only(2, needed=2)
    federation.change(federation.site_file(1), "[allow]", '[allow]\napprove = "ask"')
    tried = federation.doctor(1, "--offline", "--json", "--job", str(federation.file))
    assert "waits until somebody here approves it" in tried.stdout
    server = federation.server()
    federation.client(0)
    client = federation.client(1)
    federation.until_asks(1)
    federation.until(state="waiting", problem="1 sites accept the job")
    assert "takes no part for now: waits for a person's yes (paused)" in server.text
    [job] = json.loads(federation.ask(1, "jobs", "--json").stdout)
    assert (job["state"], job["paid"]) == ("waits for approval", 0)
    assert server.code is None
    client.kill()
    answer = federation.ask(1, "approve", job["job"], "--yes")
    assert answer.exit_code == 0
    assert "What it costs: ε = " in answer.stdout
    federation.client(1)
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
    [job] = json.loads(federation.ask(1, "jobs", "--json").stdout)
    assert (job["state"], job["paid"]) == ("finished", 3)
    assert "at the command line" in job["approved"]["by"]
