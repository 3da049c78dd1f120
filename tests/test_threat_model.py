"""The page of all that leaves a site is made of the code, and nothing is missing on it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedpriv import errors, protocol
from fedpriv.metrics import Figure
from fedpriv_client import metrics
from fedpriv_client.flower import FleetCalls

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "make_threat_model.py"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_threat_model", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SCRIPT.name in (ROOT / "scripts" / "check").read_text()


class LongerOffer(protocol.Offer):
    records: int


class Told(protocol.Body):
    loss: float


class LossError(errors.FedprivError):
    code = "loss"
    exit_code = 7


@pytest.mark.parametrize(
    ("owner", "name", "value", "missing"),
    [
        (protocol, "Offer", LongerOffer, "[fields] has no row for 'Offer.records'"),
        (protocol, "Told", Told, "[fields] has no row for 'Told.loss'"),
        (protocol, "Kind", protocol.Literal["loss"], "[vectors] has no row for 'loss'"),
        (errors, "LossError", LossError, "[errors] has no row for 'LossError'"),
        (metrics, "FIGURES", (Figure("loss", "The loss."),), "[figures] has no row for 'loss'"),
    ],
)
def test_what_has_no_row_is_named(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    value: Any,
    missing: str,
) -> None:
    monkeypatch.setattr(owner, name, value, raising=False)
    with pytest.raises(SystemExit) as found:
        script.page()
    assert missing in str(found.value)


def test_a_header_without_a_row_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FleetCalls.__init__

    def told(self: Any, url: str, key: Any, transport: Any) -> None:
        real(self, url, key, transport)
        transport.headers["x-records"] = "24"

    monkeypatch.setattr(FleetCalls, "__init__", told)
    with pytest.raises(SystemExit, match="no row for 'x-records'"):
        script.page()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("write_atomic(path, text)", "no row for 'new.kept'"),
        ("path.open('w')", "no row for 'new.kept'"),
        ("log.info('%d records', count)", "no row for 'new.kept: %d records'"),
    ],
)
def test_a_file_or_a_line_of_the_log_without_a_row_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, missing: str
) -> None:
    (tmp_path / "__init__.py").write_text(f"def kept():\n    {code}\n")
    monkeypatch.setitem(script.ROOMS, "new", tmp_path)
    with pytest.raises(SystemExit, match=missing):
        script.page()


def test_a_row_of_what_is_gone_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = script.ROWS.read_text().replace('"Offer.site"', '"Offer.site", "Offer.loss"')
    (tmp_path / "rows.toml").write_text(rows)
    monkeypatch.setattr(script, "ROWS", tmp_path / "rows.toml")
    with pytest.raises(SystemExit, match=r"what is gone: .'Offer\.loss'."):
        script.page()


def test_bounds_are_told_in_words(script: ModuleType) -> None:
    for schema, words in (
        ({"type": "string", "maxLength": 9}, "text ≤ 9"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 9}, "`^a+$` ≤ 9"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number (0, 1]"),
        ({"type": "integer", "minimum": 0, "exclusiveMaximum": 9}, "integer [0, 9)"),
        ({"type": "number", "exclusiveMinimum": 0}, "number > 0"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer or none"),
        ({"type": "array", "maxItems": 2, "items": {"type": "boolean"}}, "2 × boolean"),
    ):
        assert script.bound(schema) == words, json.dumps(schema)
