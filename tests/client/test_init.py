"""A ledger is made once: every way to make a second one for the same people is asked about."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import typer

from fedpriv.config.load import load_site
from fedpriv.errors import ConfigError, DataError, LedgerCorruptError, LedgerError
from fedpriv.privacy.ledger.ledger import Ledger
from fedpriv.privacy.ledger.rules import SumRule
from fedpriv_client.init import RATE, STEPS, in_words_of, init_site, make_ledger
from fedpriv_client.settings import ledger_path, ledgers, settings_of, site_settings
from fedpriv_client.site_ledger import open_ledger


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(
        f"""
        site = {{ name = "clinic" }}
        server = {{ address = "fed.example.org:8443", ca = "ca.crt", key = "site.key" }}
        data = {{ path = "notes.jsonl", unit = "patient", size = 250 }}
        budget = {{ epsilon = 10.0, per_job = 4.0 }}
        allow = {{ model_digest = "sha256:{"a" * 64}" }}
        """
    )
    return path


def init(file: Path, *overrides: str, **options: Any) -> str:
    return init_site(load_site(file, overrides), file, **options)


def test_a_ledger_has_the_terms_of_the_file(file: Path) -> None:
    name, rule = init(file, "budget.rule=sum", "budget.plans=4"), SumRule(2.5e-6)
    path = ledger_path(load_site(file), name)
    with Ledger.open(path) as ledger:
        terms = ledger.terms
    assert (terms.dataset_id, terms.rule, terms.budget, terms.delta) == (name, rule, 10.0, 1e-5)
    assert (terms.declared_size, terms.unit, terms.max_records_per_unit) == (250, "patient", 4)
    assert terms.private and not terms.simulated and not terms.witnessed
    assert len(name) == 32 and int(name, 16) >= 0
    for folder in (path.parent, path.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_second_ledger_is_for_other_people(file: Path) -> None:
    first = init(file)
    with pytest.raises(LedgerError, match=f"{first} already.*--another"):
        init(file)
    second = init(file, another=True)
    assert set(ledgers(load_site(file))) == {first, second}


def test_a_ledger_that_is_named_and_gone_has_to_be_restored(file: Path) -> None:
    first = init(file)
    for another in (False, True):
        with pytest.raises(LedgerError, match=r"Restore its newest copy|--another"):
            init(file, f"data.dataset_id='{'0' * 32}'", another=another)
    ledger_path(load_site(file), first).unlink()
    with pytest.raises(LedgerCorruptError, match="not there"):
        init(file, f"data.dataset_id='{first}'")
    assert ledgers(load_site(file)) == {}


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("left", ["budget.json", "ledgers/units.db"])
def test_a_ledger_that_left_traces_and_is_gone_has_to_be_restored(
    file: Path, left: str, another: bool
) -> None:
    trace = load_site(file).site.state_dir / left
    trace.parent.mkdir(parents=True)
    trace.write_text("{}")
    with pytest.raises(LedgerCorruptError, match="Restore its newest copy"):
        site_settings(load_site(file), file)
    with pytest.raises(LedgerCorruptError, match="fresh budget for the same people"):
        init(file, another=another)


def test_a_witness_is_told(file: Path) -> None:
    name = init(file, "budget.witness=witness.json")
    witness = file.parent / "witness.json"
    with pytest.raises(LedgerError, match="none is named"):
        Ledger.open(ledger_path(load_site(file), name))
    Ledger.open(ledger_path(load_site(file), name), witness).close()
    with pytest.raises(LedgerError, match="made before"):
        init(file, "budget.witness=witness.json", another=True)


def test_the_terms_are_shown_and_somebody_who_is_there_is_asked(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "notes.jsonl").write_text('{"text": "a", "patient": "1"}\n')
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked: list[str] = []

    def no(text: str, *, abort: bool) -> None:
        asked.append(text)
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    with pytest.raises(typer.Abort):
        make_ledger(load_site(file), file, another=False, yes=False)
    said = capsys.readouterr().out
    for text in ("unit: patient, all", "declared size: 250 units", "ε for life: 10", "δ: 1e-05"):
        assert text in said
    for text in ("rule: rdp: ", "witness: none, so", "notes.jsonl", "more like it would fit"):
        assert text in said
    assert f"This is for {STEPS} steps of rate {RATE:g}; another job may take more." in said
    own = load_site(file)
    allow = own.allow.model_copy(update={"max_steps": 40, "max_rate": 0.01})
    own = own.model_copy(update={"allow": allow})
    told = dict(in_words_of(own, settings_of(own, "").terms))
    assert any("This is for 40 steps of rate 0.01;" in text for text in told.values())
    own = load_site(file, ["allow.max_rate=0.2", "allow.max_steps=5"])
    told = dict(in_words_of(own, settings_of(own, "").terms))
    assert any("This is for 5 steps of rate 0.2;" in text for text in told.values())
    own = load_site(file, ["budget.per_job=10"])
    told = dict(in_words_of(own, settings_of(own, "").terms))
    assert "It does not fit" in told["a usual job of budget.per_job, ε = 10"]
    assert asked and ledgers(load_site(file)) == {}
    make_ledger(load_site(file), file, another=False, yes=True)
    assert len(ledgers(load_site(file))) == 1


def test_a_unit_that_is_no_column_of_the_data_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "notes.jsonl").write_text('{"text": "a", "patient_nbr": "1"}\n')
    with pytest.raises(DataError, match=r"data\.unit: no such column .*'patient'.*'patient_nbr'"):
        make_ledger(load_site(file), file, another=False, yes=True)
    assert ledgers(load_site(file)) == {}
    (file.parent / "notes.jsonl").unlink()
    make_ledger(load_site(file), file, another=False, yes=True)
    assert "The records were not read: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ('{"note": "a", "patient": "1"}', r"data\.columns\.text: no such column .*'text'.*note"),
        ('{"text": "", "patient": "1"}', r"data\.path: .*no example"),
        ('{"text": "a", "patient": null}', r"data\.unit: line 1 has no unit id"),
    ],
)
def test_no_ledger_is_made_for_records_that_are_no_use(file: Path, rows: str, said: str) -> None:
    (file.parent / "notes.jsonl").write_text(f"{rows}\n")
    with pytest.raises(DataError, match=said):
        make_ledger(load_site(file), file, another=False, yes=True)
    assert ledgers(load_site(file)) == {}


def test_what_is_never_used_is_told_before_a_ledger_fixes_it(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "notes.jsonl").write_text(
        json.dumps({"text": "word " * 90, "patient": "1"}) + "\n"
    )
    limits = ["allow.max_length=8", "data.max_records_per_unit=1"]
    make_ledger(load_site(file, limits), file, another=False, yes=True)
    assert "Left out for life: 1 of 1 records are cut at" in capsys.readouterr().out


def test_terms_that_make_no_ledger_leave_nothing(file: Path) -> None:
    with pytest.raises(LedgerError, match="higher order"):
        init(file, "budget.order=2")
    assert not load_site(file).site.state_dir.exists()


def test_a_ledger_has_a_second_budget_if_the_file_states_one(file: Path) -> None:
    for overrides, alone in ((["budget.epsilon_alone=25"], 25.0), ([], None)):
        name = init(file, *overrides, another=True)
        with Ledger.open(ledger_path(load_site(file), name), reading=True) as ledger:
            assert ledger.terms.budget_alone == alone
        settings = settings_of(load_site(file, overrides), name)
        open_ledger(settings).close()


@pytest.mark.parametrize(
    ("made", "stated", "words"),
    [
        ("25", "24", "was fixed as 25.0 when the ledger was made"),
        ("25", None, "was fixed as 25.0 when the ledger was made"),
        (None, "25", "which was made without one"),
    ],
)
def test_a_second_budget_can_be_neither_changed_nor_added(
    file: Path, made: str | None, stated: str | None, words: str
) -> None:
    def told(alone: str | None) -> list[str]:
        return [] if alone is None else [f"budget.epsilon_alone={alone}", "budget.order=4"]

    name = init(file, *told(made), "budget.order=4")
    settings = settings_of(load_site(file, [*told(stated), "budget.order=4"]), name)
    with pytest.raises(ConfigError, match=words) as caught:
        open_ledger(settings)
    assert caught.value.key == "budget.epsilon_alone"
