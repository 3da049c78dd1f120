"""The queue of a lasting coordinator: nothing is lost, nothing is there twice."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.config.job import JobConfig
from fedpriv.config.load import digest, load_job
from fedpriv.errors import RunError
from fedpriv_server.job_queue import ENDED, VERSION, Queue

FILE = """
[job]
name = "{name}"
rounds = 3
engine = "network"
min_sites = 1
[model]
name = "embedded"
[evaluation]
data = "held-out.jsonl"
[server]
address = "localhost:1"
[[sites]]
name = "a"
[[sites]]
name = "b"
"""


def job(folder: Path, name: str = "notes") -> tuple[JobConfig, Path]:
    file = folder / f"{name}.toml"
    file.write_text(FILE.format(name=name))
    return load_job(file), file


def waiting(queue: Queue) -> list[int]:
    return [one.id for one in queue.jobs() if one.state == "waiting"]


def test_a_job_stays_as_it_was_submitted(tmp_path: Path) -> None:
    config, file = job(tmp_path)
    with Queue.open(tmp_path) as queue:
        queue.submit(config, file)
        file.write_text("changed")
        assert digest(queue.job(1).config) == digest(config)
        assert queue.job(1).config == config


def test_one_that_was_running_goes_on_before_all(tmp_path: Path) -> None:
    with Queue.open(tmp_path) as queue:
        for name in ("x", "y"):
            queue.submit(*job(tmp_path, name))
        first = queue.begin()
        assert first is not None and (first.id, first.state) == (1, "running")
        queue.put_first(2)
    with Queue.open(tmp_path) as queue:  # whoever had it was killed
        again = queue.begin()
        assert again is not None and (again.id, again.begun) == (1, first.begun)
        queue.end(1, "finished", "All rounds are done.", {"a": {"rounds": 3, "last": "ok"}})
        ended = queue.job(1)
        assert (ended.state, ended.why, ended.sites["a"]["rounds"]) == (
            "finished",
            "All rounds are done.",
            3,
        )
        following = queue.begin()
        assert following is not None and following.id == 2


def test_a_job_is_aborted_now_or_after_its_round_and_tried_again(tmp_path: Path) -> None:
    with Queue.open(tmp_path) as queue:
        for name in ("x", "y"):
            queue.submit(*job(tmp_path, name))
        queue.begin()
        running, waits = queue.abort(1), queue.abort(2)
        assert (running.state, running.abort) == ("running", True)
        assert (waits.state, waits.why) == ("aborted", "Aborted before it began.")
        with pytest.raises(RunError, match="Job 2 is aborted"):
            queue.abort(2)
        queue.retry(2)
        assert waiting(queue) == [2] and not queue.job(2).abort
        with pytest.raises(RunError, match="Job 1 is running"):
            queue.retry(1)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 5), max_size=6))
def test_reordering_loses_nobody(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("queue")
    with Queue.open(folder) as queue:
        for _ in range(5):
            queue.submit(*job(folder))
        order = [1, 2, 3, 4, 5]
        for number in moves:
            queue.put_first(number)
            order.remove(number)
            order.insert(0, number)
            assert waiting(queue) == order


def test_a_queue_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with Queue.open(tmp_path) as queue:
        queue.submit(*job(tmp_path))
    path = tmp_path / "queue.db"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    with (
        pytest.raises(RunError, match=f"is of version {VERSION + 1}"),
        Queue.open(tmp_path),
    ):
        raise AssertionError
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (1,)


@pytest.mark.parametrize("content", [b"garbage" * 1000, None])
def test_what_is_no_queue_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "queue.db"
    if content is None:
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE others (x)")
    else:
        path.write_bytes(content)
    with pytest.raises(RunError, match="queue"), Queue.open(tmp_path):
        raise AssertionError
    with pytest.raises(RunError, match="holds no job 9"), Queue.open(tmp_path / "new") as queue:
        queue.job(9)


def test_what_was_half_written_is_not_there(tmp_path: Path) -> None:
    with Queue.open(tmp_path) as queue:
        queue.submit(*job(tmp_path))
        with pytest.raises(ZeroDivisionError), queue._changing():
            queue._database.execute("DELETE FROM jobs")
            raise ZeroDivisionError
        assert {one.name for one in queue.job(1).config.sites} == {"a", "b"}
        assert queue.job(1).state not in ENDED
