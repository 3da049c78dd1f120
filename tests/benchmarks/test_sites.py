"""The benchmark of many sites runs, and says what it is there for."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import sites


@pytest.mark.nightly
def test_a_quick_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "sites.json"
    monkeypatch.setattr(
        sys,
        "argv",
        ["sites.py", "--quick", "--json", str(found), "--chart", str(tmp_path / "a.svg")],
    )
    sites.main()
    assert "inline" in (tmp_path / "a.svg").read_text()
    rows = json.loads(found.read_text())["rows"]
    assert [(row["engine"], row["sites"]) for row in rows] == [("inline", 3), ("ray", 3)]
    assert all(row["memory_mb"] > 100 and row["files"] > 3 for row in rows)
