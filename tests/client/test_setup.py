"""Questions that turn a coordinator's draft into a site's file, its ledger and a look at it all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedpriv.config.load import load_job, load_site
from fedpriv.errors import ConfigError
from fedpriv.models.stored import digest_of
from fedpriv_client.cli import app
from fedpriv_client.settings import ledgers
from fedpriv_client.setup import fill_in, questions
from fedpriv_server.provision import ProvisionOptions, provision

FEDERATION = """\
[job]
name = "notes"
rounds = 2
engine = "network"
[server]
address = "localhost:9092"
[model]
name = "embedded"
[data]
columns = { text = "text" }
[evaluation]
data = "held-out.jsonl"
[[sites]]
name = "clinic"
"""


@pytest.fixture
def coordinator(tmp_path: Path) -> Path:
    (tmp_path / "federation.toml").write_text(FEDERATION)
    return tmp_path / "federation.toml"


@pytest.fixture
def clinic(coordinator: Path) -> Path:
    """The folder that the coordinator sends, with records in it."""
    provision(load_job(coordinator), ProvisionOptions(), passphrase=lambda: b"")
    folder = coordinator.parent / "pki" / "enrolments" / "clinic"
    rows = [json.dumps({"text": f"Patient {number} has a cough."}) for number in range(24)]
    (folder / "notes.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def typed(folder: Path, *answers: str) -> Result:
    words = ["setup", "--config", str(folder / "site.toml")]
    return CliRunner().invoke(app, words, input="\n".join(answers) + "\n")


def test_a_site_makes_its_key_first_and_the_rest_when_the_enrolment_is_there(
    tmp_path: Path, coordinator: Path
) -> None:
    folder = tmp_path / "hospital"
    said = typed(folder, "clinic").stdout
    request = folder / "clinic.request.pem"
    assert f"Send {request} to the coordinator" in said
    key = (folder / "site.key").read_bytes()
    assert "Put the files from the coordinator" in typed(folder).stdout
    assert (folder / "site.key").read_bytes() == key
    options = ProvisionOptions(approve=(request,), keys_at_sites=True)
    provision(load_job(coordinator), options, passphrase=lambda: b"")
    sent = coordinator.parent / "pki" / "enrolments" / "clinic"
    for path in sent.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    assert "Did the coordinator read out the same" in typed(folder, "n").stdout
    assert "#!" in (folder / "site.toml").read_text()


def test_answers_make_a_file_a_ledger_and_a_look_at_everything(clinic: Path) -> None:
    answers = ("y", "notes.jsonl", "24", "12", "", "../clinic.witness", "ask", "")
    said = typed(clinic, *answers)
    assert said.exit_code == 0, said.output
    file = load_site(clinic / "site.toml")
    assert file.data.path == clinic / "notes.jsonl"
    assert (file.data.size, file.budget.epsilon) == (24, 12.0)
    assert file.budget.per_job == load_job(clinic.parents[2] / "federation.toml").privacy.epsilon
    assert file.allow.approve == "ask"
    assert file.allow.model_digest == digest_of("embedded")
    assert len(ledgers(file)) == 1
    assert (clinic.parent / "clinic.witness").exists()
    assert "24 units declared" in said.stdout
    assert "stated by a person" in said.stdout  # what a key means is said before it is asked


def test_a_wrong_answer_is_asked_again_and_nothing_is_half_written(clinic: Path) -> None:
    draft = (clinic / "site.toml").read_text()
    said = typed(
        clinic, "y", "nope.jsonl", "notes.jsonl", "many", "0", "24", "inf", "1\x7f"
    )  # and then no more
    assert said.exit_code != 0
    assert "is not there" in said.stdout
    assert "valid integer" in said.stdout
    assert "a finite number" in said.stdout and "can't be shown" in said.stdout
    assert (clinic / "site.toml").read_text() == draft
    assert not (clinic / "state").exists()
    # δ, of the draft, has to be below 1 / size: seen when all is answered.
    (clinic / "site.toml").write_text(draft.replace("delta = 1e-05", "delta = 0.05"))
    given = iter(["notes.jsonl", "24", "12", "3", "", "", ""])
    with pytest.raises(ConfigError, match=r"site\.toml: budget\.delta") as wrong:
        fill_in(clinic / "site.toml", lambda text, usual: next(given) or usual or "", print)
    assert wrong.value.file == clinic / "site.toml"


def test_what_is_open_in_a_draft_is_found_with_its_table(clinic: Path) -> None:
    draft = (clinic / "site.toml").read_text()
    found = {question.key: question.needed for question in questions(draft)}
    assert found == {
        "data.path": True,
        "data.size": True,
        "budget.epsilon": True,
        "budget.per_job": True,
        "budget.witness": False,
        "allow.approve": False,
        "allow.model_digest": True,
    }
