"""A whole audit: of public records with all twins, and of private ones with none on records."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from fedpriv.auditing.result import Audit, PartName
from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.errors import ConfigError, RunError
from fedpriv_audit.audit import QUICK, Subject, check_parts, run_audit
from fedpriv_simulation.simulate import simulate
from tests.audit.audited import SMALL

PARTS = check_parts("pipeline,one-run,membership,exposure")


def attack(subject: Subject, parts: Collection[PartName], folder: Path) -> Audit:
    """Attack in small, as `fedpriv audit --quick` does."""
    said: dict[str, Any] = {"command": "fedpriv audit --quick", "tell": lambda text: None}
    return run_audit(subject, folder, parts, QUICK, source=folder, **said)


@pytest.fixture
def federation(tmp_path: Path, model_folder: Callable[..., Any]) -> Path:
    """Two sites of private records."""
    for name in ("one", "two", "open"):
        lines = (json.dumps({"text": f"{name} note {i}: fever {i * i}"}) + "\n" for i in range(12))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    sites = "".join(
        f'[[sites]]\nname = "{name}"\ndata = "{name}.jsonl"\nsize = 12\n' for name in ("one", "two")
    )
    file = tmp_path / "federation.toml"
    file.write_text(
        f'[job]\nrounds = 2\n[model]\nname = "{model_folder("llama")}"\n'
        "[privacy]\nepsilon = 4.0\ndelta = 1e-3\nsample_rate = 0.5\nclip_norm = 1.0\n"
        'max_records_per_unit = 1\n[optimizer]\nlr = 0.01\n[evaluation]\ndata = "open.jsonl"\n'
        f"{sites}"
    )
    return file


@pytest.mark.nightly
def test_what_the_embedded_example_comes_to_in_small(tmp_path: Path) -> None:
    """Every part and every twin that has to be caught, as `fedpriv audit --quick` runs them."""
    found = attack(Subject(load_job(HOSPITALS)), PARTS, tmp_path)
    assert [part.name for part in found.parts] == PARTS
    assert found.holds
    assert found.sound, [(p.name, w.name) for p in found.parts for w in p.missed]
    assert found.not_private
    assert found.refused == ()
    for part in found.parts:
        names = [world.name for world in part.worlds]
        assert names[0] == "as-claimed"
        assert any(world.wanted for world in part.worlds)
    membership = found.parts[2]
    assert [world.private for world in membership.worlds] == [True, False]
    assert membership.worlds[0].epsilon == membership.epsilon <= 4.0


def test_nothing_looks_at_private_records(tmp_path: Path, federation: Path) -> None:
    out = tmp_path / "out"
    found = attack(Subject(load_job(federation, SMALL)), ["membership", "exposure"], out)
    assert found.parts == ()
    assert {one.what for one in found.refused} == {"membership", "exposure"}
    assert all("job.data_is_public" in one.why for one in found.refused)
    assert not found.not_private
    assert [path.name for path in out.iterdir()] == ["audit.json"]


def test_parts_are_checked_by_name() -> None:
    assert check_parts("exposure, pipeline") == ["pipeline", "exposure"]
    with pytest.raises(ConfigError, match="one-runs"):
        check_parts("one-runs")


@pytest.mark.slow
def test_a_run_is_audited_with_its_settings_and_its_adapter(
    tmp_path: Path, federation: Path
) -> None:
    config = load_job(federation, [*SMALL, "job.data_is_public=true"])
    simulate(config, tmp_path / "run", source=federation)
    subject = Subject.of_run(tmp_path / "run")
    assert subject.config == config
    found = attack(subject, ["membership"], tmp_path / "run")
    assert subject.run is not None
    assert found.job_id == subject.run.info["job_id"]
    [part] = found.parts
    assert [world.name for world in part.worlds] == ["as-claimed", "run", "no-noise"]
    own = part.worlds[1]
    assert own.epsilon_lower is None
    assert own.trials == {"units": 36, "members": 24}
    assert 0 <= own.measures[0].value <= 1


def test_only_a_finished_run_is_audited(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run directory"):
        Subject.of_run(tmp_path)
