"""One process in a folder, and what it says of itself."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpriv import process
from fedpriv.errors import RunningError
from fedpriv.process import LOCK, Status, is_running, only_process, read_status

HOLD = """
import sys
from pathlib import Path
from fedpriv.process import only_process
with only_process(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        assert is_running(tmp_path)
        with pytest.raises(RunningError), only_process(tmp_path):
            pass
        first.kill()
    assert not is_running(tmp_path)
    with only_process(tmp_path):
        assert is_running(tmp_path)


def test_nothing_is_left_of_one_that_ended(tmp_path: Path) -> None:
    """And whoever waited with the old file in hand takes the one that is there."""
    with only_process(tmp_path):
        waiting = (tmp_path / LOCK).open()
    assert not list(tmp_path.iterdir())
    fcntl.flock(waiting, fcntl.LOCK_EX)
    with only_process(tmp_path), pytest.raises(RunningError), only_process(tmp_path):
        pass
    waiting.close()


def test_a_look_at_a_folder_does_not_keep_a_process_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_running` holds the lock for an instant; on a busy machine that may be long."""
    (tmp_path / LOCK).touch()
    with (tmp_path / LOCK).open() as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        time = SimpleNamespace(
            monotonic=lambda: 0.0, sleep=lambda _: fcntl.flock(stream, fcntl.LOCK_UN)
        )
        monkeypatch.setattr(process, "time", time)
        with only_process(tmp_path):
            assert is_running(tmp_path)


def test_a_status_is_what_was_said_last(tmp_path: Path) -> None:
    status = Status(tmp_path, state="starting", problem="")
    status.update(state="running", round=3)
    found = read_status(tmp_path)
    assert (found["state"], found["round"], found["problem"]) == ("running", 3, "")
    assert found["running"] is False  # nobody holds the folder


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    status = Status(tmp_path, state="running")
    before = (tmp_path / "status.json").stat().st_mtime_ns
    status.update(state="running")
    assert (tmp_path / "status.json").stat().st_mtime_ns == before


def test_a_process_that_has_said_nothing_yet_runs(tmp_path: Path) -> None:
    with only_process(tmp_path):
        assert read_status(tmp_path) == {"running": True, "pid": None}


def test_a_folder_without_a_process_says_so(tmp_path: Path) -> None:
    assert read_status(tmp_path) == {"running": False, "pid": None}
    (tmp_path / "status.json").write_text("{")
    assert read_status(tmp_path) == {"running": False, "pid": None}
