"""A job that waits, approved on the site's page in a browser, while figures are served."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.client.browser import Browser
from tests.client.webhook import Webhook
from tests.network.network_federation import ROUNDS, Federation
from tests.network.network_processes import Command
from tests.waiting import free_port, wait_until

Totals = tuple[float, float, float, int]
pytestmark = pytest.mark.nightly


def figures(port: int) -> Callable[[], str]:
    """What a process says to Prometheus, when it is asked."""

    def ask() -> str:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode())

    return ask


@pytest.fixture
def ports(federation: Federation) -> tuple[int, int]:
    """Those of the figures of the server, and of the second site, which asks its people."""
    server, site = free_port(), free_port()
    federation.only(2, needed=2)
    federation.change(federation.file, "[server]", f"[server]\nmetrics_port = {server}")
    changed = federation.site_file(1)
    federation.change(changed, "[site]", f"[site]\nmetrics_port = {site}")
    federation.change(changed, "[allow]", '[allow]\napprove = "ask"')
    return server, site


def served(federation: Federation) -> tuple[Command, str]:
    """The second site's page, and its address with the token."""
    config = federation.site_file(1)
    arguments = ("fedpriv-client", "serve-page", "--port", "0", "--config", str(config))
    command = federation.run(*arguments, name="page")
    wait_until(lambda: "page.token" in command.text)  # it says at which port it listens
    token = (config.parent / "state" / "page.token").read_text()
    where = command.text.split()[0]
    return command, where.replace("http://", f"http://x:{token}@")


def test_a_job_waits_is_approved_on_the_page_and_runs(
    federation: Federation, expected: Totals, ports: tuple[int, int], tmp_path: Path
) -> None:
    of_server, of_site = (figures(port) for port in ports)
    hook = Webhook()
    hook.free.set()
    notify = f'[notify]\nurls = ["{hook.url}"]\n[budget]'
    federation.change(federation.site_file(1), "[budget]", notify)
    server = federation.server()
    federation.client(0, "held")
    client = federation.client(1)
    federation.until_asks(1)
    wait_until(lambda: hook.taken)
    hook.close()
    assert "waits for approval" in hook.taken[0]["title"]
    assert 'fedpriv_site_jobs{state="waits for approval"} 1.0' in of_site()
    assert "fedpriv_site_slots_paid_total 0.0" in of_site()
    wait_until(lambda: 'fedpriv_server_state{state="waiting"} 1.0' in of_server())
    page, where = served(federation)
    browser = Browser(tmp_path)
    try:
        browser.open(where)
        text = browser.value("document.body.innerText")
        assert "The client is running: connected" in text and "Signed on " in text
        assert (federation.out / "signed.json").exists()
        browser.key("Tab")
        browser.key("Tab")
        browser.key("Enter", loads=True)
        federation.until_paid(1, 1)
        wait_until(lambda: 'fedpriv_site_jobs{state="begun"} 1.0' in of_site())
        wait_until(lambda: "fedpriv_server_round 1.0" in of_server())
        assert 'fedpriv_server_site_answered{site="site-1"} 1.0' in of_server()
        federation.let_go(0)
        assert server.wait() == 0, server.text
        wait_until(lambda: f"fedpriv_site_slots_released_total {float(ROUNDS)}" in of_site())
        browser.open(where)
        assert "3 of 3" in browser.value("document.body.innerText")
    finally:
        browser.close()
    text = client.text + server.text + page.text + of_site()
    assert "Traceback" not in text
    federation.finish(server)
    assert federation.totals(0) == federation.totals(1) == expected
    [job] = json.loads(federation.ask(1, "jobs", "--json").stdout)
    assert job["state"] == "finished"
    assert job["approved"]["by"] == "x, on the site's page"


def test_a_job_that_is_refused_on_one_site_goes_on_without_it(
    federation: Federation, expected: Totals, ports: tuple[int, int]
) -> None:
    """What a refusal ends is the waiting, and nothing of it was paid."""
    federation.change(federation.file, "min_sites = 2", "min_sites = 1")
    server = federation.server()
    federation.client(0, "held")
    federation.client(1)
    job = federation.until_asks(1)
    assert federation.ask(1, "refuse", job).exit_code == 0
    refused = federation.ask(1, "approve", job, "--yes")
    assert (refused.exit_code, "--undo" in str(refused.exception)) == (1, True)
    federation.let_go(0)
    assert server.wait() == 0, server.text
    federation.stop()
    assert federation.totals(0) == expected
    assert federation.totals(1)[1:] == (0.0, 0.0, 0)
