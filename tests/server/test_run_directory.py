"""What a run directory keeps of the end of a job, and of what is owed after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpriv.errors import RunError
from fedpriv.process import Status
from fedpriv_server.run_directory import RunDirectory
from tests.server.test_job_queue import job


def test_why_a_job_ended_before_it_began_is_kept_and_nothing_half_made(tmp_path: Path) -> None:
    config, _ = job(tmp_path)
    run = RunDirectory.open(tmp_path / "run", config)
    Status(run.path, state="stopped", sites={}, problem="too few")
    (run.path / "base").mkdir()
    sites = {"a": {"rounds": 0, "last": "refused: limit"}}
    run.keep_end("too few", sites)
    run.discard()
    assert {path.name for path in run.path.iterdir()} == {"run.json", "status.json"}
    kept = json.loads((run.path / "run.json").read_text())
    assert kept["ended"] == {
        "why": "too few",
        "sites": {"a": {"rounds": 0, "last": "refused: limit"}},
    }
    again = RunDirectory.open(run.path, config)
    assert again.info["job_id"] == run.info["job_id"]  # which people may have said yes to
    assert "ended" not in again.info
    again.discard()
    assert not list(run.path.iterdir())


def test_another_job_in_its_place_is_another_one(tmp_path: Path) -> None:
    config, _ = job(tmp_path)
    run = RunDirectory.open(tmp_path / "run", config)
    other = config.model_copy(update={"job": config.job.model_copy(update={"rounds": 5})})
    assert RunDirectory.open(run.path, other).info["job_id"] != run.info["job_id"]


def test_a_run_of_an_older_version_goes_on_whose_keys_that_are_gone_had_no_effect(
    tmp_path: Path,
) -> None:
    config, _ = job(tmp_path)
    run = RunDirectory.create(tmp_path / "run", config, insecure_seed=None)
    path, settings = run.path / "run.json", run.info["config"]
    older = {**settings, "controller": None, "evaluation": {**settings["evaluation"], "hardest": 0}}
    info = {**run.info, "status": "interrupted", "config": older, "config_digest": "another"}
    path.write_text(json.dumps(info))
    assert RunDirectory.open(run.path, config).info["job_id"] == run.info["job_id"]
    older["evaluation"]["hardest"] = 0.1
    path.write_text(json.dumps(info))
    with pytest.raises(RunError, match=r"other settings: evaluation\.hardest"):
        RunDirectory.open(run.path, config)


@pytest.mark.parametrize("key", ["config", "job", "owed", "seeds"])
def test_a_record_with_another_value_in_place_of_a_table_is_named(tmp_path: Path, key: str) -> None:
    config, _ = job(tmp_path)
    run = RunDirectory.create(tmp_path / "run", config, insecure_seed=None)
    info = run.info | {"status": "interrupted", key: "damaged"}
    (run.path / "run.json").write_text(json.dumps(info))
    with pytest.raises(RunError, match=r"run\.json: can't be read as the record of a run"):
        RunDirectory.open(run.path, config)


def test_what_is_owed_is_kept(tmp_path: Path) -> None:
    config, _ = job(tmp_path)
    run = RunDirectory.open(tmp_path / "run", config)
    assert run.owed == {"reports": [], "adapters": []}
    run.owe(reports=(), adapters={"b"})
    found = RunDirectory.read(run.path)
    assert found is not None and found.owed == {"reports": [], "adapters": ["b"]}
    assert RunDirectory.read(tmp_path / "nothing") is None
