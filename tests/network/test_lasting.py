"""A server that lasts: a queue of jobs, one broker, and what comes late."""

from __future__ import annotations

import json

import pytest

from fedpriv.config.load import load_site
from fedpriv.report.rundir import read_run
from tests.network.network_federation import ROUNDS, Federation
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

Totals = tuple[float, float, float, int]


def test_a_lasting_server_that_is_killed_amid_a_job_finishes_it_and_asks_nothing_twice(
    federation: Federation, expected: Totals
) -> None:
    federation.only(2, needed=2)
    federation.submit(1)
    server = federation.lasting()
    federation.client(0, "held")
    federation.client(1)
    federation.until_paid(1, 2)
    job = json.loads((federation.out / "run.json").read_text())["job_id"]
    second = federation.run(
        "fedpriv-server", "serve", str(federation.file), "--state", str(federation.state), name="b"
    )
    assert second.wait() == 6  # two coordinators on one folder
    server.kill()
    assert not json.loads(federation.ask_server("status", "--json").stdout)["running"]
    federation.lasting()
    federation.let_go(0)
    ended = federation.until_ended(1, "finished")
    assert ended["why"] == "All rounds are done."
    assert ended["sites"] == {
        f"site-{index}": {"rounds": ROUNDS, "last": "ok"} for index in range(2)
    }
    assert json.loads((federation.out / "run.json").read_text())["job_id"] == job
    federation.stop()
    assert federation.totals(0) == federation.totals(1) == expected


def test_what_a_site_owes_of_one_job_is_fetched_while_the_next_one_runs(
    federation: Federation,
) -> None:
    federation.only(2, needed=1)
    server = federation.lasting()
    federation.submit(1)
    federation.client(0, "held")
    away = federation.client(1)
    federation.until_paid(1, 2)
    away.kill()
    federation.let_go(0)
    ended = federation.until_ended(1, "finished")
    assert ended["sites"]["site-1"]["rounds"] in (1, 2)
    first = federation.out
    run = json.loads((first / "run.json").read_text())
    assert run["owed"] == {"adapters": ["site-1"], "reports": ["site-1"]}
    assert [report.site for report in read_run(first).reports] == ["site-0"]
    page = (first / "report.html").read_bytes()

    federation.submit(2)
    federation.until(problem="Waiting for site-1")
    federation.client(1)
    assert federation.until_ended(2, "finished")["sites"]["site-1"]["last"] == "ok"
    run = json.loads((first / "run.json").read_text())
    assert run["owed"] == {"adapters": [], "reports": []}
    assert [report.site for report in read_run(first).reports] == ["site-0", "site-1"]
    assert (first / "report.html").read_bytes() != page
    state = load_site(federation.site_file(1)).site.state_dir
    wait_until((state / "adapters" / run["job_id"]).exists, lambda: server.text)
    assert server.text.count("Listening on") == 1
    federation.stop()
