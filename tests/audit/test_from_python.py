"""`fedpriv.audit` is the command's audit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedpriv
from fedpriv.auditing.result import read_audit
from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, RunError


@pytest.mark.slow
def test_it_returns_what_it_keeps(tmp_path: Path, federation: Callable[..., Path]) -> None:
    job, out = load_job(federation()), tmp_path / "audit"
    found = fedpriv.audit(job, parts=["pipeline"], quick=True, seed=3, out=out)
    assert read_audit(out / "audit.json") == found
    assert found.holds and [part.name for part in found.parts] == ["pipeline"]
    assert found.seeds["canaries, coins and halves"] == "3"
    assert found.command.startswith("fedpriv.audit('test', parts=['pipeline']")


def test_what_cannot_be_asked_leaves_nothing_behind(
    tmp_path: Path, federation: Callable[..., Path]
) -> None:
    job, out, gone = load_job(federation()), tmp_path / "audit", tmp_path / "none"
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"parts": ["pipelines"]}, ConfigError, "'pipelines'"),
        ({"job": job, "run": gone}, ConfigError, "Leave job"),
        ({"job": job, "overrides": ["job.rounds=1"]}, ConfigError, "Give them to load_job"),
        ({"run": gone}, RunError, "is no run directory"),
    ]
    for asked, kind, said in wrong:
        with pytest.raises(kind, match=said):
            fedpriv.audit(**asked, out=out)
    assert not out.exists() and not gone.exists()
