"""A ledger is undone only if nothing knows of anything that was spent; it leaves a trace."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedpriv.config.load import load_site
from fedpriv.config.site_file import SiteFile
from fedpriv.errors import LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.unit_index import Identity, UnitIndex
from fedpriv.privacy.ledger.witness import Witness
from fedpriv_client import undo_init
from fedpriv_client.init import init_site, make_ledger
from fedpriv_client.settings import ledger_path, ledgers
from fedpriv_client.undo_init import LOG, last_undone, undo
from tests.privacy.ledger.test_life import PLAN


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(
        f"""
        site = {{ name = "clinic" }}
        server = {{ address = "fed.example.org:8443", ca = "ca.crt", key = "site.key" }}
        data = {{ path = "notes.jsonl", size = 250 }}
        budget = {{ epsilon = 1.2, per_job = 1.0, witness = "elsewhere/clinic.witness" }}
        allow = {{ model_digest = "sha256:{"a" * 64}" }}
        """
    )
    (tmp_path / "elsewhere").mkdir()
    return path


class Made:
    """A site with a ledger, and what becomes of it."""

    def __init__(self, config: Path) -> None:
        self.config, self.file = config, load_site(config)
        self.name = init_site(self.file, config)
        self.path, self.state = ledger_path(self.file, self.name), self.file.site.state_dir
        assert self.file.budget.witness is not None
        self.witness = self.file.budget.witness

    def state_anew(self, old: str, new: str) -> SiteFile:
        self.config.write_text(self.config.read_text().replace(old, new))
        self.file = load_site(self.config)
        return self.file

    def spend(self) -> None:
        with Ledger.open(self.path, self.witness) as ledger:
            ledger.commit(replace(PLAN, noise_multiplier=8.0))


def restored(made: Made) -> None:
    """An older copy of a ledger that was spent from; its witness is outside the backup."""
    kept = made.path.with_suffix(".copy")
    shutil.copy(made.path, kept)
    made.spend()
    kept.replace(made.path)


def claimed(made: Made) -> None:
    UnitIndex(made.path.parent).claim(made.name, [[Identity("text", b"a")]], file=made.path.name)


def lost_index(made: Made) -> None:
    claimed(made)
    (made.path.parent / "units.db").unlink()


def reported(made: Made) -> None:
    report = made.state / "reports" / f"{made.name}.json"
    report.parent.mkdir()
    report.write_text(json.dumps({"dataset_id": made.name}))


def newest_report(made: Made) -> None:
    (made.state / "budget.json").write_text(json.dumps({"dataset_id": made.name}))


def account(made: Made) -> None:
    path = made.state / "accounts" / f"{made.name}.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"plans": [], "used": [0.0], "rows": 2}))


def unnamed(made: Made) -> None:
    made.state_anew(', witness = "elsewhere/clinic.witness"', "")


def removed(made: Made) -> None:
    made.witness.unlink()


CASES: list[tuple[Callable[[Made], None], str]] = [
    (Made.spend, "has 2 rows: something was paid"),
    (restored, "went back in time"),
    (claimed, "its units are in the index"),
    (lost_index, "units.db: is missing"),
    (reported, "was written from it"),
    (newest_report, "was written from it"),
    (account, "knows of more rows"),
    (unnamed, "budget.witness does not name it"),
    (removed, "is not there"),
]


@pytest.mark.parametrize(("what", "said"), CASES, ids=[what.__name__ for what, _ in CASES])
def test_whatever_knows_of_something_is_asked(
    config: Path, what: Callable[[Made], None], said: str
) -> None:
    made = Made(config)
    what(made)
    before = made.path.read_bytes()
    with pytest.raises(LedgerError, match=said):
        undo(made.file, made.name)
    assert made.path.read_bytes() == before and not (made.state / LOG).exists()
    made.state_anew("epsilon = 1.2", "epsilon = 12")
    with pytest.raises(LedgerError, match=r"already\. A second one"):
        make_ledger(made.file, config, another=False, yes=True)


@pytest.mark.parametrize("moved", [timedelta(days=1, minutes=1), timedelta(minutes=-1)])
def test_it_is_for_a_day_and_a_clock_that_went_back_is_no_day(
    config: Path, moved: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(config)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + moved

    monkeypatch.setattr(undo_init, "datetime", Clock)
    with pytest.raises(LedgerError, match="not in the last day"):
        undo(made.file, made.name)


def test_an_unspent_ledger_of_other_terms_is_replaced_and_leaves_a_trace(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Made(config)
    with pytest.raises(LedgerError, match=f"{made.name} already.*undo-init"):
        make_ledger(made.file, config, another=False, yes=True)
    made.state_anew("epsilon = 1.2, per_job = 1.0", "epsilon = 12.0, per_job = 3.0")
    make_ledger(made.file, config, another=False, yes=True)
    said = capsys.readouterr().out
    assert "ε for life: 12\n" in said and f"Undid the ledger of data set {made.name}" in said
    [name] = ledgers(made.file)
    assert name != made.name
    with Ledger.open(ledger_path(made.file, name), made.witness) as ledger:
        assert ledger.terms.budget == 12.0
    row = last_undone(made.state)
    assert (row["dataset_id"], row["budget"]) == (made.name, 1.2)
    assert (made.state / LOG).stat().st_mode & 0o777 == 0o600
    assert made.path.with_name(f"{made.path.name}.undone").exists()


def test_an_undoing_that_was_cut_short_is_completed(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(config)
    with monkeypatch.context() as patched:
        patched.setattr(undo_init, "_forget_witness", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            undo(made.file, made.name)
    assert made.witness.exists() and ledgers(made.file) == {}
    undo(made.file, made.name)
    assert not made.witness.exists()
    assert init_site(made.file, config) != made.name


def test_a_line_that_was_cut_short_hides_no_other(config: Path) -> None:
    made = Made(config)
    (made.state / LOG).write_text('{"at": "2026-01-')
    undo(made.file, made.name)
    assert last_undone(made.state)["dataset_id"] == made.name


def test_what_is_nowhere_was_not_undone(config: Path) -> None:
    """Its file was lost, and an undoing that did not come to that is in the log."""
    made = Made(config)
    (made.state / LOG).write_text(json.dumps({"dataset_id": made.name}) + "\n")
    made.path.unlink()
    with pytest.raises(LedgerError, match="its file is not there"):
        undo(made.file, made.name)
    assert made.witness.exists()


def test_a_witness_of_another_ledger_is_left_alone(config: Path) -> None:
    made = Made(config)
    undo(made.file, made.name)
    other = init_site(made.file, config)
    undo(made.file, made.name)  # once more
    assert Witness.read(made.witness).dataset_id == other
    with pytest.raises(LedgerError, match="no such ledger"):
        undo(made.file, "0" * 32)
