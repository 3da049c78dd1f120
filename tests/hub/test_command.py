"""`fedpriv adapter`, as a person types it, on what `fedpriv simulate` leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from tests.forked_commands import command

Make = Callable[..., Any]


@pytest.mark.slow
def test_a_run_is_exported_in_both_forms(federation: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = command("fedpriv", "simulate", str(federation(rounds=1)), "--out", str(run))
    assert done.returncode == 0, done.stderr
    done = command("fedpriv", "adapter", str(run), "--out", str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "a" / "README.md") in done.stdout
    assert "site-1" in ModelCard.load(tmp_path / "a" / "README.md").text
    merged = ("adapter", str(run), "--out", str(tmp_path / "m"), "--merge", "--json")
    done = command("fedpriv", *merged)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).items() >= {"merged": True, "private": True}.items()
    assert (tmp_path / "m" / "model.safetensors").exists()
    again = command("fedpriv", *merged)
    assert again.returncode == 2
    assert "Give another --out" in again.stderr and "Traceback" not in again.stderr


@pytest.mark.slow
def test_a_run_with_seeded_noise_is_called_not_private(federation: Make, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--rounds", "1", "--insecure-seed", "1", "--out", str(run))
    assert command("fedpriv", "simulate", str(federation()), *words).returncode == 0
    done = command("fedpriv", "adapter", str(run), "--out", str(tmp_path / "a"))
    assert done.returncode == 0, done.stderr
    assert "NOT PRIVATE" in done.stdout
    assert "> **NOT PRIVATE.**" in (tmp_path / "a" / "README.md").read_text()
