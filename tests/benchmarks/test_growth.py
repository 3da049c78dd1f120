"""The benchmark of growing models runs, and its arithmetic is that of the models."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import growth
import pytest


def test_parameters_are_counted_without_a_model() -> None:
    """But for the norms, of which arithmetic takes no note."""
    from step import build, trained

    [size] = growth.QUICK
    model = build(growth.shape_of(size, 16), "sdpa")
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    facts = growth.arithmetic(size, 16)
    assert facts["parameters"] == pytest.approx(frozen, rel=1e-3)
    assert facts["trained"] == sum(p.numel() for p in trained(model))


@pytest.mark.nightly
def test_a_quick_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "growth.json"
    monkeypatch.setattr(sys, "argv", ["growth.py", "--quick", "--json", str(found)])
    growth.main()
    rows = json.loads(found.read_text())["rows"]
    assert [row["way"] for row in rows] == list(growth.WAYS) * 2
    assert {row["tokens"] for row in rows} == {16, 64}
    by_way = {row["way"]: row["peak_mb"] for row in rows if row["tokens"] == 64}
    assert by_way["fedpriv, checkpointing"] < by_way["fedpriv"]


def test_what_is_too_large_is_only_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tmp_path / "growth.json"
    options = ["--quick", "--memory", "0", "--json", str(found)]
    monkeypatch.setattr(sys, "argv", ["growth.py", *options])
    growth.main()
    rows = json.loads(found.read_text())["rows"]
    assert all("seconds" not in row and row["floor_checkpointing_mb"] > 0 for row in rows)
