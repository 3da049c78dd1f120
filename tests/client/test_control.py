"""What an administrator orders stands until it is changed, and is not guessed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpriv.errors import ConfigError, JobRefusedError, PausedError
from fedpriv_client.control import Orders


def test_without_orders_everything_is_answered(tmp_path: Path) -> None:
    Orders.read(tmp_path).check("job")


def test_a_pause_holds_for_every_job_until_it_is_lifted(tmp_path: Path) -> None:
    Orders(paused=True).write(tmp_path)
    with pytest.raises(PausedError, match="resume"):
        Orders.read(tmp_path).check("job")
    Orders(paused=False).write(tmp_path)
    Orders.read(tmp_path).check("job")


def test_a_refusal_is_of_one_job(tmp_path: Path) -> None:
    Orders(refused=("bad",)).write(tmp_path)
    Orders.read(tmp_path).check("good")
    with pytest.raises(JobRefusedError, match="'bad'"):
        Orders.read(tmp_path).check("bad")


def test_a_refusal_by_name_is_of_all_jobs_of_that_name(tmp_path: Path) -> None:
    Orders(refused=("notes",)).write(tmp_path)
    Orders.read(tmp_path).check("notes-2-1a2b3c4d")
    with pytest.raises(JobRefusedError, match="'notes-1a2b3c4d'"):
        Orders.read(tmp_path).check("notes-1a2b3c4d")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"paused": true}', '{"paused": 1, "refused": 3}'])
def test_orders_that_can_not_be_read_are_not_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "orders.json").write_text(text)
    with pytest.raises(ConfigError, match=r"orders\.json"):
        Orders.read(tmp_path)
