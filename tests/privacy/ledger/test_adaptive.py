"""Rows as version 0.2.0 wrote them for plans whose noise was chosen between the steps."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fedpriv.errors import LedgerCorruptError, LedgerError
from fedpriv.files import canonical_json
from fedpriv.privacy.ledger import administration, chain
from fedpriv.privacy.ledger.ledger import Ledger, Plan, Terms
from fedpriv.privacy.ledger.rules import PlanRule, RdpRule, Rule, SumRule
from fedpriv.report.ledger_export import export_ledger, verify_ledger

PLAN = Plan("job-1", "dp-lora", 0.1, 1.5, 1.0, 8, "sha256:" + "c" * 64)
DIGEST = "sha256:" + "a" * 64
RULES = [PlanRule(), RdpRule(8), SumRule(2.5e-6)]
CHOICE = {"noise": 2.0, "rate": 0.5}


def rewritten(opened: Ledger, changes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """An export whose rows have more fields, by their kinds, and all hashes made anew."""
    document = export_ledger(opened)
    previous = chain.GENESIS
    for row in document["rows"]:
        row["body"].update(changes.get(row["kind"], {}))
        previous = row["hash"] = chain.row_hash(previous, row["kind"], canonical_json(row["body"]))
    document["head"]["hash"] = previous
    return document


def write_rows(path: Path, document: dict[str, Any]) -> None:
    """Put the rows of an export into a ledger's file."""
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER rows_are_final")
    for number, row in enumerate(document["rows"], 1):
        body = canonical_json(row["body"]).decode()
        values = (body, row["hash"], number)
        connection.execute("UPDATE rows SET body = ?, hash = ? WHERE number = ?", values)
    connection.commit()
    connection.close()


def made(tmp_path: Path, rule: Rule, changes: dict[str, dict[str, Any]]) -> tuple[Path, Path]:
    """A ledger of one plan, one slot of which was reserved, and its export: both rewritten."""
    terms = Terms("0" * 32, 200, "record", 1, 1e-5, 6.0, simulated=True, rule=rule)
    path, export = tmp_path / "ledger.db", tmp_path / "export.json"
    with Ledger.create(path, terms, tmp_path / "witness") as opened:
        opened.commit(PLAN)
        opened.reserve("job-1", 0, DIGEST)
        document = rewritten(opened, changes)
    write_rows(path, document)
    export.write_text(json.dumps(document))
    return path, export


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_plan_with_an_order_is_refused_and_nothing_is_changed(tmp_path: Path, rule: Rule) -> None:
    """It is not damaged, and the version that reads it is named."""
    path, export = made(tmp_path, rule, {"plan": {"order": 8}, "reserve": CHOICE})
    witness = tmp_path / "witness"
    before = [one.read_bytes() for one in (path, export, witness)]
    for read in (
        lambda: Ledger.open(path, witness),
        lambda: Ledger.open(path, witness, reading=True),
        lambda: Ledger.open(path, reading=True),
        lambda: administration.recover(path, witness),
        lambda: verify_ledger(path),
        lambda: verify_ledger(export),
    ):
        with pytest.raises(LedgerError, match=r"'job-1'.*Nothing was changed\. Use 0\.2\.0") as why:
            read()
        assert not isinstance(why.value, LedgerCorruptError)
    assert [one.read_bytes() for one in (path, export, witness)] == before


@pytest.mark.parametrize("changes", [{"noise": 2.0}, {"rate": 1.0}, CHOICE, {"debit": 0.0}])
def test_a_slot_that_was_chosen_in_a_plan_without_an_order_is_forged(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    path, export = made(tmp_path, RdpRule(8), {"reserve": changes})
    for read in (lambda: Ledger.open(path, reading=True), lambda: verify_ledger(export)):
        with pytest.raises(LedgerCorruptError, match="does not follow"):
            read()


def test_a_plan_and_its_slots_have_the_rows_that_they_always_had(tmp_path: Path) -> None:
    path, export = made(tmp_path, RdpRule(8), {})
    with Ledger.open(path, reading=True) as opened:
        first, second = (row.body for row in opened.rows()[1:])
    assert set(first) == {
        "job", "method", "sample_rate", "noise_multiplier", "clip_norm", "steps", "proposal",
        "numerics", "at",
    }  # fmt: skip
    assert second == {"job": "job-1", "slot": 0, "request": DIGEST}
    assert verify_ledger(export)[:2] == verify_ledger(path)[:2]
