"""`fedpriv.forecast`: the same of a file and of a job that was read before."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedpriv
from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError
from tests.forecasting.federation_files import federation_file
from tests.forecasting.made_up_runs import runs, write


def test_a_file_and_a_job_say_the_same(tmp_path: Path) -> None:
    table = write(tmp_path / "border.json", runs(scatter=0.01))
    file = federation_file(tmp_path / "f.toml", (50, 60, 70, 80))
    found = fedpriv.forecast(file, table=table)
    assert found == fedpriv.forecast(load_job(file), table=str(table))
    assert found.sites == 4 and found.kind == "notes"
    other = fedpriv.forecast(file, ["privacy.epsilon=1"], table=table)
    assert other.ways != found.ways


def test_errors_name_the_file_or_the_job(tmp_path: Path) -> None:
    table = write(tmp_path / "border.json", runs(scatter=0.01))
    file = federation_file(tmp_path / "f.toml", (None, None))
    with pytest.raises(ConfigError, match=r"f\.toml: "):
        fedpriv.forecast(file, table=table)
    with pytest.raises(ConfigError, match=f"{load_job(file).job.name}: "):
        fedpriv.forecast(load_job(file), table=table)


def test_a_job_takes_no_overrides(tmp_path: Path) -> None:
    job = load_job(federation_file(tmp_path / "f.toml", (50, 60, 70, 80)))
    with pytest.raises(ConfigError, match=r"are for the keys of a file.*Give them to load_job"):
        fedpriv.forecast(job, ["privacy.epsilon=1"])
