"""The file of an audit."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fedpriv.auditing.result import Audit, Measure, Part, World, conclusion, read_audit, verdict
from fedpriv.errors import ConfigError


def world(name: Any, proved: float | None, **changes: Any) -> World:
    known: dict[str, Any] = {
        "name": name,
        "private": True,
        "epsilon": 2.0,
        "epsilon_lower": proved,
        "found": proved is not None and proved > 2,
        "wanted": name == "half-noise",
        "trials": {"jobs": 10},
        "measures": (Measure(name="AUC", value=0.5, low=0.4, high=0.6, by_chance=0.5),),
    }
    return World(**{**known, **changes})


def an_audit(*worlds: World) -> Audit:
    part = Part(
        name="pipeline",
        epsilon=2.0,
        delta=0.01,
        confidence=0.95,
        settings={"steps": 4},
        worlds=worlds,
        seconds=1.0,
    )
    return Audit(
        command="fedpriv audit",
        started=datetime(2026, 1, 1, tzinfo=UTC),
        seconds=1.0,
        versions={"fedpriv": "0"},
        job="job",
        job_id=None,
        method="dp-lora",
        base_digest="sha256:" + "0" * 64,
        config_digest="sha256:" + "0" * 64,
        data_is_public=True,
        not_private=False,
        charged={},
        seeds={},
        parts=(part,),
        refused=(),
    )


@pytest.mark.parametrize(
    ("claimed", "half", "holds", "sound"),
    [(1.0, 3.0, True, True), (2.1, 3.0, False, True), (1.0, 1.9, True, False)],
)
def test_what_an_audit_comes_to(claimed: float, half: float, holds: bool, sound: bool) -> None:
    audit = an_audit(world("as-claimed", claimed), world("half-noise", half))
    assert (audit.holds, audit.sound) == (holds, sound)
    says = conclusion(audit)
    assert ("does not hold" in says) == (not holds)
    assert ("not caught" in says) == (holds and not sound)
    words = [verdict(audit.parts[0], one) for one in audit.parts[0].worlds]
    assert words == [
        "nothing found" if holds else "CLAIM BROKEN",
        "caught" if sound else "NOT CAUGHT",
    ]


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    audit = an_audit(world("as-claimed", None))
    assert read_audit(audit.write(tmp_path)) == audit


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [('"format": 1', '"format": 2', "format"), ('"found": false', '"found": 7', "found")],
)
def test_another_format_or_a_changed_file_is_refused_by_key(
    tmp_path: Path, old: str, new: str, key: str
) -> None:
    path = an_audit(world("as-claimed", 1.0)).write(tmp_path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=key):
        read_audit(path)


def test_reading_one_needs_no_torch() -> None:
    code = "import sys, fedpriv.auditing.result; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
