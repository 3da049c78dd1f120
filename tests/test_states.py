"""The page of states is made of the code, and no state is missing on it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest

from fedpriv import process
from fedpriv.report import rundir
from fedpriv_client import jobs

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "make_states.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("make_states", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert SCRIPT.name in (ROOT / "scripts" / "check").read_text()


@pytest.mark.parametrize(
    ("owner", "name", "table"),
    [
        (process, "Connection", "connection"),
        (process, "Activity", "activity"),
        (process, "ServerState", "server"),
        (jobs, "State", "job"),
    ],
)
def test_a_state_without_a_row_is_an_error(
    script: ModuleType, owner: Any, name: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, Literal[getattr(owner, name), "asleep"])
    with pytest.raises(SystemExit, match=rf"\[{table}\] .* \['asleep'\]"):
        script.page()


def test_a_site_in_a_round_has_a_row_for_each_state(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rundir, "SiteState", list(rundir.SiteState)[1:])
    with pytest.raises(SystemExit, match=r"\[site\] .* \['ok'\]"):
        script.page()


def test_every_kind_of_row_of_a_ledger_is_there(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"plan", "reserve", "release", "close"} <= set(script.row_kinds())
    monkeypatch.setattr(script, "row_kinds", lambda: ["plan"])
    with pytest.raises(SystemExit, match=r"\[ledger\] .*'release'"):
        script.page()


def test_a_word_that_is_no_state_is_an_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_said", lambda tree: iter([("state", "asleep")]))
    with pytest.raises(SystemExit, match="'asleep' is in no enumeration"):
        script.page()
