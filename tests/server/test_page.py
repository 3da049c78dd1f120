"""The coordinator's page: the queue, the sites and what became of earlier jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from fedpriv.process import Status, only_process
from fedpriv_server.job_queue import Queue
from fedpriv_server.page import coordinator_app, page
from tests.server.test_job_queue import job
from tests.server.test_status import row


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with a job that ended, one that runs and one that waits."""
    folder = tmp_path / "consortium"
    with Queue.open(folder) as queue:
        for name in ("first", "second", "third"):
            queue.submit(*job(tmp_path, name))
        queue.begin()
        sites = {
            "a": {"rounds": 3, "last": "ok"},
            "b": {"rounds": 0, "last": "refused: limit <b>"},
        }
        queue.end(1, "finished", "All rounds are done.", sites)
        ended, running = queue.job(1).folder(folder), queue.job(2).folder(folder)
        queue.begin()
    for path in (ended, running):
        path.mkdir(parents=True)
    owed = {"reports": ["a"], "adapters": []}
    (ended / "run.json").write_text(json.dumps({"owed": owed}))
    rows = {"a": row(), "b": row(there=False, last="not asked yet")}
    facts = {
        "state": "running",
        "round": 1,
        "rounds": 3,
        "sites": rows,
        "problem": "Waiting for b.",
    }
    Status(running, job="second-1", **facts)
    Status(folder, job="2", state="running", sites=rows, problem="")
    return folder


def words(text: str) -> str:
    return " ".join(text.partition("<header>")[2].split())


def test_it_says_what_runs_what_waits_and_what_became_of_the_rest(state: Path) -> None:
    running = state / "runs" / "0002-second"
    with only_process(state), only_process(running):
        text = words(page(state))
    assert "A server runs. Job 2, second, runs. 1 waits." in text
    assert "Running, round 1 of 3. Waiting for b." in text
    assert "3: third" in text and ">yes<" in text and ">no<" in text
    assert "took part in 3 rounds; last answer: ok; its budget report is missing" in text
    assert "took no part; last answer: refused: limit &lt;b&gt;" in text


def test_without_a_server_nobody_is_there(state: Path) -> None:
    text = words(page(state))
    assert "No server runs." in text and "goes on when it is started again" in text
    assert ">yes<" not in text and "Stopped, round 1 of 3" in text


def test_a_folder_in_which_nothing_happened_has_a_page(tmp_path: Path) -> None:
    assert "No job waits." in page(tmp_path) and "No server has listened" in page(tmp_path)


def test_it_is_for_who_has_the_token(state: Path) -> None:
    browser = TestClient(coordinator_app(state, "secret"), "http://127.0.0.1:8641")
    assert browser.get("/").status_code == 401
    browser.auth = ("anybody", "wrong")
    assert browser.get("/").status_code == 401
    browser.auth = ("anybody", "secret")
    shown = browser.get("/")
    assert (
        shown.status_code == 200
        and "default-src 'none'" in shown.headers["Content-Security-Policy"]
    )
    assert 'http-equiv="refresh" content="5"' in shown.text
