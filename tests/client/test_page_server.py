"""Whoever has no token, or is another page, neither reads the site's page nor presses a button."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from fedpriv.local_page import new_token
from fedpriv_client.orders import Orders
from fedpriv_client.page_server import MOST, page_app
from fedpriv_client.proposals import KeptProposal, proposals_folder
from tests.client.page_setting import PROPOSAL, Place

HERE = "http://127.0.0.1:8640"
TOKEN = "the-token-of-this-test"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    made.propose()
    return made


def client(place: Place, token: str | None = TOKEN, base: str = HERE) -> TestClient:
    made = TestClient(page_app(place.file, place.config, TOKEN), base, follow_redirects=False)
    if token is not None:
        made.auth = ("anybody", token)
    return made


def form(browser: TestClient, **changes: str) -> dict[str, str]:
    """The form of the page's only job that waits, as a browser would send it."""
    text = browser.get("/").text
    [known] = {tuple(re.findall(r'name="(form_key|job|digest)" value="([^"]+)"', text))[:3]}
    return dict(known) | changes


def press(browser: TestClient, action: str = "approve", origin: str = HERE, **changes: str) -> Any:
    data = form(browser, **changes)
    return browser.post(f"/{action}", data=data, headers={"Origin": origin})


def test_who_has_the_token_sees_the_page_and_decides(place: Place) -> None:
    browser = client(place)
    assert "1 job waits" in " ".join(browser.get("/").text.split())
    answer = press(browser)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    yes = Orders.read(place.state).approved[PROPOSAL.digest()]
    assert (yes.job, yes.by) == (PROPOSAL.job_id, "anybody, on the site's page")
    assert "No job waits" in browser.get("/").text


def test_a_job_is_refused_and_stays_so(place: Place) -> None:
    browser = client(place)
    assert press(browser, "refuse").status_code == 303
    assert Orders.read(place.state).refused == (PROPOSAL.job_id,)
    known = {"form_key": "x", "job": PROPOSAL.job_id, "digest": PROPOSAL.digest()}
    assert browser.post("/approve", data=known, headers={"Origin": HERE}).status_code == 403
    assert Orders.read(place.state).approved == {}


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN[:-1], TOKEN + "x", "ä"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/approve"), ("GET", "/x")])
def test_without_the_token_nothing_is_shown_or_done(
    place: Place, token: str | None, method: str, path: str
) -> None:
    answer = client(place, token).request(method, path, headers={"Origin": HERE})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic")
    assert PROPOSAL.job_id not in answer.text
    assert Orders.read(place.state).approved == {}


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""])
def test_a_name_that_was_bound_anew_to_this_machine_is_refused(place: Place, name: str) -> None:
    browser = client(place)
    answer = browser.get("/", headers={"Host": f"{name}:8640"})
    assert answer.status_code == 400
    assert PROPOSAL.job_id not in answer.text


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_a_tunnel_may_end_at_another_port(place: Place, name: str) -> None:
    base = f"http://{name}:9999"
    assert press(client(place, base=base), origin=base).status_code == 303


@pytest.mark.parametrize(
    "origin", ["null", "http://evil.example", "http://127.0.0.1:8641", "https://127.0.0.1:8640", ""]
)
def test_another_page_presses_no_button(place: Place, origin: str) -> None:
    browser = client(place)
    for action in ("approve", "refuse"):
        answer = press(browser, action, origin=origin)
        assert answer.status_code == 403
    data = form(browser)
    assert browser.post("/approve", data=data).status_code == 403  # and no origin at all
    assert Orders.read(place.state) == Orders()


@pytest.mark.parametrize("key", ["", "x", "ä" * 9])
def test_a_form_that_is_not_of_this_page_is_refused(place: Place, key: str) -> None:
    assert press(client(place), form_key=key).status_code == 403
    assert Orders.read(place.state) == Orders()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"digest": "sha256:" + "0" * 64}, 409),
        ({"job": "another-1"}, 409),
        ({"job": ""}, 422),
        ({"more": "x" * MOST}, 413),
    ],
)
def test_only_a_proposal_that_waits_is_approved(
    place: Place, changes: dict[str, str], status: int
) -> None:
    assert press(client(place), **changes).status_code == status
    assert Orders.read(place.state) == Orders()


def test_what_was_changed_meanwhile_is_not_what_was_read(place: Place) -> None:
    """The button is about the proposal that it stood beside."""
    browser = client(place)
    seen = form(browser)
    changed = place.propose(seed=9)
    assert browser.post("/approve", data=seen, headers={"Origin": HERE}).status_code == 303
    assert changed.digest() not in Orders.read(place.state).approved
    assert [job.digest for job in place.jobs.waiting] == [changed.digest()]


def test_a_yes_is_to_the_price_that_the_page_showed(place: Place) -> None:
    """The site's file decides on a proposal's price, and may change while a page is open."""
    browser = client(place)
    seen = form(browser)
    [path] = proposals_folder(place.state).iterdir()
    kept = KeptProposal.read(path)
    noise = kept.plan.noise_multiplier / 2
    dearer = kept.model_copy(update={"committed": {**kept.committed, "noise_multiplier": noise}})
    path.write_text(dearer.model_dump_json())
    assert browser.post("/approve", data=seen, headers={"Origin": HERE}).status_code == 409
    assert Orders.read(place.state) == Orders()


def test_a_browser_is_told_to_keep_and_load_nothing(place: Place) -> None:
    headers = client(place).get("/").headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy and "form-action 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"  # with none, a form would have no origin
    for path in ("/docs", "/openapi.json", "/x"):
        assert client(place).get(path).status_code == 404


def test_what_is_wrong_is_said_and_nothing_is_guessed(place: Place) -> None:
    (place.state / "orders.json").write_text("{")
    answer = client(place).get("/")
    assert answer.status_code == 503
    assert "can't be read as orders" in answer.text


def test_a_token_is_its_owners_alone_and_of_one_start(tmp_path: Path) -> None:
    """Who listened at the port in between, and was sent the last one, opens nothing with it."""
    token, path = new_token(tmp_path)
    path.chmod(0o644)
    other, same = new_token(tmp_path)
    assert (same, len(other) > 40, other != token) == (path, True, True)
    assert path.read_text() == other and path.stat().st_mode & 0o777 == 0o600


def with_approvers(place: Place) -> TestClient:
    allow = place.file.allow.model_copy(update={"approvers": ("Ada", "Bea"), "approvals": 2})
    place.file = place.file.model_copy(update={"allow": allow})
    return client(place)


def test_named_persons_are_asked_who_they_are_and_why(place: Place) -> None:
    browser = with_approvers(place)
    text = browser.get("/").text
    assert re.findall(r"<option>([^<]+)</option>", text) == ["Ada", "Bea"]
    assert 'name="by" required' in text and 'name="reason" required' in text
    said = {"reason": "ethics", "text": "vote <7/26>"}
    assert press(browser, by="Ada", **said).status_code == 303
    shown = browser.get("/").text
    assert "1 job waits" in " ".join(shown.split())
    assert "Ada, " in shown and "(ethics: vote &lt;7/26&gt;)" in shown
    assert press(browser, by="Bea", agreed="yes", **said).status_code == 303
    assert "No job waits" in browser.get("/").text
    persons = Orders.read(place.state).approved[PROPOSAL.digest()].persons
    assert [(one.by, one.reason, one.agreed) for one in persons] == [
        ("Ada", "ethics", False),
        ("Bea", "ethics", True),
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"by": "Carl", "reason": "ethics"},  # who is not on the list
        {"reason": "ethics"},  # nor is whoever the browser says
        {"by": "Ada"},
        {"by": "Ada", "reason": "because"},
        {"by": "Ada", "reason": "ethics", "text": "x" * 1001},
    ],
)
def test_who_may_not_approve_is_told_and_nothing_changes(place: Place, said: Any) -> None:
    browser = with_approvers(place)
    answer = press(browser, **said)
    assert answer.status_code == 422
    assert "--" in answer.text  # which part of it is wrong
    assert Orders.read(place.state) == Orders()


def test_a_no_needs_no_list_and_is_shown_with_its_reason(place: Place) -> None:
    browser = with_approvers(place)
    assert press(browser, "refuse", reason="recipients", text="a company").status_code == 303
    shown = browser.get("/").text
    assert "anybody, on the site&#39;s page, " in shown and "(recipients: a company)" in shown
