"""`fedpriv audit` as a person types it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedpriv.auditing.result import Audit, read_audit
from tests.forked_commands import command


@pytest.mark.slow
def test_it_prints_and_keeps_what_it_found(
    tmp_path: Path, model_folder: Callable[..., Any]
) -> None:
    arguments = ["audit", "--quick", "--parts", "pipeline", "--seed", "3", "--json"]
    small = [f"model.name={model_folder('llama')}", "lora.r=2", "model.max_length=32"]
    options = [word for value in small for word in ("--set", value)]
    done = command("fedpriv", *arguments, *options, "--out", str(tmp_path / "audit"))
    assert done.returncode == 0, done.stderr
    kept = read_audit(tmp_path / "audit" / "audit.json")
    assert Audit.model_validate_json(done.stdout) == kept
    assert kept.command.startswith("fedpriv audit --quick")
    assert kept.seeds["canaries, coins and halves"] == "3"
    assert not kept.not_private
    [part] = kept.parts
    assert [world.name for world in part.worlds] == ["as-claimed", "tenth-noise"]
    assert part.holds
    assert "Many canaries" not in done.stderr


@pytest.mark.slow
def test_what_cannot_be_asked_leaves_nothing_behind(tmp_path: Path) -> None:
    for options, said in (
        (("--parts", "pipelines"), "'pipelines'"),
        (("--run", str(tmp_path / "none")), "is no run directory"),
        (("--run", str(tmp_path / "none"), "--set", "job.rounds=1"), "Leave the file"),
    ):
        done = command("fedpriv", "audit", *options, "--out", str(tmp_path / "audit"))
        assert done.returncode == 2
        assert said in done.stderr
        assert not (tmp_path / "audit").exists()
        assert not (tmp_path / "none").exists()
