"""`fedpriv-client jobs`, `approve`, `refuse` and `status`, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedpriv.errors import ConfigError, JobRefusedError
from fedpriv_client.cli import app
from fedpriv_client.orders import Orders
from tests.client.page_setting import PROPOSAL, Place
from tests.test_signed_proposal import STATED


def typed(place: Place, command: str, *arguments: str, **others: Any) -> Result:
    config = ("--config", str(place.config))
    return CliRunner().invoke(app, [command, *arguments, *config], env={"COLUMNS": "80"}, **others)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, alone=60.0).with_history()


def test_jobs_lists_them_with_whole_ids(place: Place) -> None:
    text = typed(place, "jobs").stdout
    for job in place.jobs.jobs:
        assert job.name in text
    assert "fedpriv-client approve JOB" in text
    facts = json.loads(typed(place, "jobs", "--json").stdout)
    assert [fact["job"] for fact in facts] == [job.name for job in place.jobs.jobs]
    waits = facts[0]
    assert (waits["state"], waits["paid"], waits["approved"]) == ("waits for approval", 0, None)
    assert waits["proposal"] == PROPOSAL.digest()
    assert waits["epsilon_alone"] == waits["epsilon"] == place.jobs.waiting[0].epsilon


def test_before_a_job_was_proposed_there_is_none(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "No job was proposed" in typed(place, "jobs").stdout
    assert json.loads(typed(place, "jobs", "--json").stdout) == []


def test_status_names_those_that_wait(place: Place) -> None:
    assert f"wait for approval: {PROPOSAL.job_id}" in typed(place, "status").stdout
    assert json.loads(typed(place, "status", "--json").stdout)["waiting"] == [PROPOSAL.job_id]


def test_a_job_is_approved_after_it_was_shown(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpriv.terminal.is_asked", lambda: True)
    answer = typed(place, "approve", "notes", input="n\n")
    assert answer.exit_code == 1 and "What it costs: ε = 2.996" in answer.stdout
    assert PROPOSAL.digest() not in Orders.read(place.state).approved
    answer = typed(place, "approve", "notes", input="y\n")
    assert answer.exit_code == 0
    assert Orders.read(place.state).approved[PROPOSAL.digest()].by.endswith("at the command line")
    assert "does not wait for approval: not begun" in typed(place, "approve", "notes").stdout


def test_where_nobody_can_be_asked_yes_has_to_be_said(place: Place) -> None:
    answer = typed(place, "approve", "notes")
    assert isinstance(answer.exception, ConfigError) and "--yes" in str(answer.exception)
    assert PROPOSAL.digest() not in Orders.read(place.state).approved
    assert typed(place, "approve", "notes", "--yes").exit_code == 0


def test_a_script_names_the_digest_that_it_has_looked_at(place: Place) -> None:
    changed = place.propose(seed=1)
    assert isinstance(typed(place, "approve", "notes", "--yes").exception, ConfigError)
    done = typed(place, "approve", "notes", "--yes", "--digest", changed.digest())
    assert done.exit_code == 0
    assert set(Orders.read(place.state).approved) >= {changed.digest()}
    assert PROPOSAL.digest() not in Orders.read(place.state).approved


def test_a_refused_job_is_approved_after_that_was_taken_back(place: Place) -> None:
    answer = typed(place, "approve", "nonsense", "--yes")
    assert isinstance(answer.exception, JobRefusedError)
    assert "refuse --undo" in str(answer.exception)
    typed(place, "refuse", "nonsense", "--undo")
    assert typed(place, "approve", "nonsense", "--yes").exit_code == 0


def test_a_refusal_of_what_nobody_proposed_says_so(place: Place) -> None:
    """A misspelt name would be taken for a job that is stopped; taking it back is no mistake."""
    for known in ("notes", PROPOSAL.job_id):
        assert "was proposed so far" not in typed(place, "refuse", known).stdout
    said = typed(place, "refuse", "nots").stdout
    assert "No job 'nots' was proposed so far. Jobs so far: " in said
    assert PROPOSAL.job_id in said
    assert "nots" in Orders.read(place.state).refused  # a job of that name may come
    assert "was proposed so far" not in typed(place, "refuse", "nots", "--undo").stdout


def test_a_reason_and_a_name_are_kept_and_listed(place: Place) -> None:
    said = ("--by", "Ada", "--reason", "usual", "--text", "as in spring")
    assert typed(place, "approve", "notes", "--yes", *said).exit_code == 0
    [job] = [job for job in place.jobs.jobs if job.name == PROPOSAL.job_id]
    assert job.approval is not None
    assert (job.approval.by, job.approval.reason) == ("Ada", "usual")
    no = typed(place, "refuse", "summer", "--reason", "cost")
    assert no.exit_code == 0
    facts = json.loads(typed(place, "jobs", "--json").stdout)
    [summer] = [fact for fact in facts if fact["job"].startswith("summer")]
    assert (summer["state"], summer["refused"]["reason"]) == ("refused", "cost")
    assert summer["refused"]["by"].endswith("at the command line")
    wrong = typed(place, "approve", "nonsense", "--yes", "--reason", "because")
    assert isinstance(wrong.exception, ConfigError) and "--reason" in str(wrong.exception)


def test_what_a_job_is_for_is_shown_before_it_is_approved(place: Place) -> None:
    place.propose(STATED, job_id="stated-11112222")
    answer = typed(place, "approve", "stated", "--yes")
    for words in (
        "Shorter discharge letters",
        "Dr Ada",
        "north, south.",
        "2999-12-31",
        "Not signed.",
    ):
        assert words in answer.stdout
    assert "Approved." in answer.stdout
