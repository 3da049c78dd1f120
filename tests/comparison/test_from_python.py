"""`fedpriv.compare`: as the command, from Python."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

import fedpriv
from fedpriv.errors import ConfigError, RunError


@pytest.mark.slow
def test_methods_side_by_side_and_again_at_no_cost(
    federation: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, out = federation(rounds=1), tmp_path / "comparison"
    level = logging.getLogger("fedpriv_client").level
    found = fedpriv.compare(file, ["base", "dp-lora"], seeds=1, out=out)
    assert logging.getLogger("fedpriv_client").level == level
    assert capfd.readouterr() == ("", "")
    assert pandas.json_normalize(found.rows)["name"].tolist() == ["base", "dp-lora"]
    kept = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.json")}
    again = fedpriv.compare(str(file), ["base", "dp-lora"], seeds=1, out=out)
    assert again.rows == found.rows
    assert kept == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.json")}
    document = json.loads((out / "compare.json").read_text())
    assert document["rows"] == found.rows
    assert "fedpriv.compare(" in document["command"] in found.report.read_text()


def test_what_is_wrong_is_a_typed_error(federation: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data_is_public"):
        fedpriv.compare(federation(public=False), ["dp-lora"], out=tmp_path / "comparison")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    with pytest.raises(RunError, match="other than a comparison"):
        fedpriv.compare(federation(), ["dp-lora"], out=tmp_path / "other")


def test_each_site_in_turn_is_a_new_one(federation: Callable[..., Any], tmp_path: Path) -> None:
    way: Any = {"seeds": 1, "held_out": 0.5, "leave_one_site_out": True, "new_sites": [2]}
    overrides = ["personal.rates=[3e-2]", "personal.epochs=1"]
    found = fedpriv.compare(federation(), ["base"], overrides, out=tmp_path / "out", **way)
    outside = found.rows[0]["outside"]
    assert [*outside["by_site"]["2"]] == ["site-0", "site-1"]
    assert outside["loss"]["2"]["mean"] != outside["loss"]["0"]["mean"]
    with pytest.raises(ConfigError, match="new_sites"):
        fedpriv.compare(federation(), ["base"], out=tmp_path / "out", new_sites=[-1])
