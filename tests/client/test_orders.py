"""What an administrator orders stands until it is changed, and is not guessed at."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedpriv.errors import ConfigError, JobRefusedError, PausedError
from fedpriv.privacy.ledger.plan import Plan
from fedpriv_client.orders import Asked, Orders, Said

DIGEST = "sha256:" + "0" * 64


def asked(job: str, proposal: str = DIGEST) -> Asked:
    return Asked(Plan(job, "dp-lora", 0.1, 1.0, 0.1, 10, proposal), "ledger", 1e-5)


def test_without_orders_everything_is_answered(tmp_path: Path) -> None:
    Orders.read(tmp_path).check("job")


def test_a_pause_holds_for_every_job_until_it_is_lifted(tmp_path: Path) -> None:
    Orders(paused=True).write(tmp_path)
    with pytest.raises(PausedError, match="resume"):
        Orders.read(tmp_path).check("job")
    Orders(paused=False).write(tmp_path)
    Orders.read(tmp_path).check("job")


def test_a_refusal_is_of_one_job(tmp_path: Path) -> None:
    Orders(refused=("bad",)).write(tmp_path)
    Orders.read(tmp_path).check("good")
    with pytest.raises(JobRefusedError, match="'bad'"):
        Orders.read(tmp_path).check("bad")


def test_a_refusal_by_name_is_of_all_jobs_of_that_name(tmp_path: Path) -> None:
    Orders(refused=("notes",)).write(tmp_path)
    Orders.read(tmp_path).check("notes-2-1a2b3c4d")
    with pytest.raises(JobRefusedError, match="'notes-1a2b3c4d'"):
        Orders.read(tmp_path).check("notes-1a2b3c4d")


def test_a_yes_is_read_as_it_was_written(tmp_path: Path) -> None:
    Orders.change(tmp_path, lambda stands: stands.approving(asked("notes-1"), "somebody"))
    stands = Orders.read(tmp_path)
    assert stands == Orders.read(tmp_path)
    assert (stands.approved[DIGEST].job, stands.approved[DIGEST].by) == ("notes-1", "somebody")
    stands.check_approved(asked("notes-1"))
    with pytest.raises(PausedError, match="fedpriv-client approve notes-1"):
        stands.check_approved(asked("notes-1", DIGEST.replace("0", "1")))


def test_of_two_persons_each_has_said_yes_once(tmp_path: Path) -> None:
    for by in ("Ada", "Ada", "Bea", "Ada"):
        Orders.change(tmp_path, lambda stands, by=by: stands.approving(asked("n-1"), by))
    stands = Orders.read(tmp_path)
    assert [one.by for one in stands.persons(asked("n-1"))] == ["Bea", "Ada"]
    assert [one.by for one in stands.persons(asked("n-1"), ["Ada"])] == ["Ada"]
    stands.check_approved(asked("n-1"), needed=2)
    with pytest.raises(PausedError):
        stands.check_approved(asked("n-1"), ["Ada", "Carl"], needed=2)


def test_why_a_job_was_refused_is_kept_until_that_is_taken_back(tmp_path: Path) -> None:
    said = Said(by="Ada", reason="purpose")
    stands = Orders.change(tmp_path, lambda stands: stands.refusing("notes", said))
    no = Orders.read(tmp_path).refusal("notes-1a2b3c4d")
    assert no is not None and (no.by, no.reason) == ("Ada", "purpose")
    assert stands.refusing("notes").refusal("notes") == no  # said again, without a reason
    assert stands.not_refusing("notes") == Orders()


@pytest.mark.parametrize("refused", ["notes-1a2b3c4d", "notes"])
def test_a_no_takes_a_yes_back_for_good(refused: str) -> None:
    """Whoever takes the no back did not say yes again, least of all to each job of that name."""
    other = DIGEST.replace("0", "1")
    stands = Orders().approving(asked("notes-1a2b3c4d"), "somebody")
    stands = stands.approving(asked("other-1a2b3c4d", other), "somebody")
    stands = stands.refusing(refused).not_refusing(refused)
    stands.check("notes-1a2b3c4d")
    stands.check_approved(asked("other-1a2b3c4d", other))
    with pytest.raises(PausedError, match="waits for somebody to approve it"):
        stands.check_approved(asked("notes-1a2b3c4d"))


def test_orders_of_an_older_version_stand(tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text('{"paused": true, "refused": ["bad"]}')
    assert Orders.read(tmp_path) == Orders(paused=True, refused=("bad",))


def test_a_yes_of_an_older_version_is_read_and_asked_for_again(tmp_path: Path) -> None:
    """It states no price."""
    yes = '{"job": "notes-1", "at": "2026-01-01T00:00:00Z", "by": "somebody"}'
    text = f'{{"paused": false, "refused": [], "approved": {{"{DIGEST}": {yes}}}}}'
    (tmp_path / "orders.json").write_text(text)
    assert Orders.read(tmp_path).approved[DIGEST].by == "somebody"
    for approvers in ([], ["Ada", "somebody"]):
        with pytest.raises(PausedError):
            Orders.read(tmp_path).check_approved(asked("notes-1"), approvers)


def test_of_orders_that_are_given_at_once_none_is_lost(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = [f"job-{number}" for number in range(40)]
        list(pool.map(lambda name: Orders.change(tmp_path, lambda o: o.refusing(name)), names))
    assert Orders.read(tmp_path).refused == tuple(sorted(names))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"paused": true}',
        '{"paused": 1, "refused": 3}',
        '{"paused": false, "refused": [], "approved": ["sha256:0"]}',
        '{"paused": false, "refused": [], "approved": {"sha256:0": {"job": "a"}}}',
        '{"paused": false, "refused": [], "approved": {"a": {"job": "a", "at": "x", "by": "b"}}}',
    ],
)
def test_orders_that_can_not_be_read_are_not_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "orders.json").write_text(text)
    with pytest.raises(ConfigError, match=r"orders\.json"):
        Orders.read(tmp_path)
