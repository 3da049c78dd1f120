"""The benchmark of many records runs, and a record takes a few bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import records


@pytest.mark.nightly
def test_a_quick_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "records.json"
    monkeypatch.setattr(
        sys, "argv", ["records.py", "--quick", "--units", "patient", "--json", str(found)]
    )
    records.main()
    rows = json.loads(found.read_text())["rows"]
    assert [(row["unit"], row["records"]) for row in rows] == [("patient", 100), ("patient", 1000)]
    assert all(row["start_seconds"] > 0 and row["ledger_ms"] > 0 for row in rows)


def test_a_slope_is_between_two_sizes_of_one_unit() -> None:
    rows = [
        {"unit": unit, "records": count, "held_mb": held, "peak_mb": held}
        for unit, count, held in (("record", 0, 1.0), ("record", 10**6, 9.0), ("patient", 5, 3.0))
    ]
    records.with_slopes(rows)
    assert [row.get("held_bytes_per_record") for row in rows] == [None, 8.0, None]
