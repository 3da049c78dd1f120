"""Files that are the old ones or the new ones."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from fedpriv.files import finite_json, replacing, replacing_folder, write_atomic


def in_place(path: Path) -> None:
    path.write_text("new")


def by_a_file_of_its_own(path: Path) -> None:
    other = path.with_name("other")
    other.touch(mode=0o640)
    other.write_text("new")
    other.replace(path)


@pytest.mark.parametrize("write", [in_place, by_a_file_of_its_own])
@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_the_new_file_is_there_when_the_block_has_ended(
    tmp_path: Path, write: object, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    plain = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.fstat(fd).st_ino), plain(fd)))
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path, mode) as temporary:
        assert callable(write)
        write(temporary)
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert synced == [path.stat().st_ino, tmp_path.stat().st_ino]


def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_what_a_killed_process_left_is_no_hindrance_and_no_hole(tmp_path: Path) -> None:
    left = tmp_path / f".file.{os.getpid()}-{threading.get_native_id()}.tmp"
    left.touch(mode=0o666)
    write_atomic(tmp_path / "file", b"secret", mode=0o600)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_two_threads_that_write_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as temporary:
        temporary.write_text("first")
        other = threading.Thread(target=write_atomic, args=(path, "second"))
        other.start()
        other.join()
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def fill(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "a").write_text(text)


def test_a_folder_takes_the_place_of_another_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for text in ("old", "new"):
        with replacing_folder(path) as made:
            fill(made, text)
            assert not path.exists() or (path / "a").read_text() == "old"
        assert (path / "a").read_text() == text
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "a").stat().st_mode) == 0o600


def test_folders_within_it_are_its_owners_too(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "folder") as made:
        (made / "inner" / "deep").mkdir(parents=True, mode=0o755)
        (made / "inner" / "deep" / "a").write_text("new")
    inner = tmp_path / "folder" / "inner"
    assert (inner / "deep" / "a").read_text() == "new"
    for path, mode in ((inner, 0o700), (inner / "deep", 0o700), (inner / "deep" / "a", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("there", [True, False])
def test_after_an_error_the_old_folder_is_there_and_nothing_else(
    tmp_path: Path, error: type[BaseException], there: bool
) -> None:
    path = tmp_path / "folder"
    if there:
        fill(path, "old")
    with pytest.raises(error), replacing_folder(path) as made:
        fill(made, "half")
        raise error
    assert [found.name for found in tmp_path.iterdir()] == (["folder"] if there else [])
    assert not there or (path / "a").read_text() == "old"


def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    fill(path, "old")
    plain = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise PermissionError
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError), replacing_folder(path) as made:
        fill(made, "new")
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]
    assert (path / "a").read_text() == "old"


@pytest.mark.parametrize("left", [".folder.tmp", ".folder.old"])
def test_a_folder_that_a_killed_process_left_is_put_back_or_removed(
    tmp_path: Path, left: str
) -> None:
    path = tmp_path / "folder"
    fill(tmp_path / left, "left")
    with pytest.raises(RuntimeError), replacing_folder(path):
        raise RuntimeError
    if left.endswith(".old"):  # it was the one that is replaced
        assert (path / "a").read_text() == "left"
    with replacing_folder(path) as made:
        fill(made, "new")
    assert [found.name for found in tmp_path.iterdir()] == ["folder"]
    assert (path / "a").read_text() == "new"


def test_what_is_not_finite_has_no_json() -> None:
    found = finite_json({"a": [1.0, float("nan")], "b": (float("-inf"), {"c": "x"}, None, 2)})
    assert found == {"a": [1.0, None], "b": [None, {"c": "x"}, None, 2]}


def test_folders_that_lead_to_one_are_made_and_taken_away_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    with pytest.raises(ZeroDivisionError), replacing_folder(path) as made:
        (made / "file").write_text("x")
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []
    with replacing_folder(path) as made:
        (made / "file").write_text("x")
    assert (path / "file").read_text() == "x"
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "a" / "d" / "e"):
        _ = 1 / 0
    assert [one.name for one in (tmp_path / "a").iterdir()] == ["b"]  # what was there stays
