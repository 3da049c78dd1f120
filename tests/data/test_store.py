"""What goes into the store comes out, and nothing is left of it."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.encode import Example
from fedpriv.data.store import SomeUnits, StoredUnits, TokenFile

HERE = Path(tempfile.gettempdir())
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30)


@given(st.lists(TOKENS, max_size=12), st.booleans())
def test_examples_come_back_as_they_were(texts: list[list[int]], classes: bool) -> None:
    examples = [
        Example(ids, len(ids) if classes else [-100, *(i // 2 for i in ids[1:])]) for ids in texts
    ]
    store = TokenFile(HERE).store()
    assert [store.append(example) for example in examples] == list(range(len(examples)))
    store.seal()
    assert len(store) == len(examples)
    assert [store[number] for number in reversed(range(len(store)))] == examples[::-1]


@given(st.lists(st.integers(0, 3), max_size=12))
def test_units_have_their_examples(sizes: list[int]) -> None:
    store = TokenFile(HERE).store()
    units, members = [], []
    for owner, size in enumerate(sizes):
        units.append(tuple(Example([owner, part], [-100, part]) for part in range(size)))
        members.append([store.append(example) for example in units[-1]])
    store.seal()
    stored = StoredUnits(store, members)
    assert list(stored) == units
    assert stored[1:] == units[1:]
    assert stored[: -1 or None] == units[:-1]
    if units:
        assert stored[-1] == units[-1]
    with pytest.raises(IndexError):
        stored[len(units)]
    assert list(SomeUnits(stored, range(0, len(units), 2))) == units[::2]


def test_what_has_no_room_is_told_and_spoils_nothing(tmp_path: Path) -> None:
    store = TokenFile(tmp_path).store()
    short, long = Example([1, 2], [-100, 2]), Example([7] * 3000, [7] * 3000)
    store.append(short)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError):
            store.append(long)
        assert store.append(short) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    store.seal()
    assert [store[0], store[1]] == [short, short]


def test_the_file_has_no_name_and_goes_with_its_store(tmp_path: Path) -> None:
    store = TokenFile(tmp_path).store()
    store.append(Example([1, 2, 3], [-100, 2, 3]))
    store.seal()
    assert store[0].input_ids == [1, 2, 3]
    assert list(tmp_path.iterdir()) == []
    held = str(tmp_path)
    maps = Path(f"/proc/{os.getpid()}/maps")
    assert held in maps.read_text()
    del store
    gc.collect()
    assert held not in maps.read_text()


def test_room_is_taken_at_once_and_kept_for_every_store(tmp_path: Path) -> None:
    file = TokenFile(tmp_path, 1 << 20)

    def taken() -> int:
        return os.fstat(file._file.fileno()).st_blocks * 512

    assert taken() >= 1 << 20
    whole = taken()
    for length in (3, 5000, 1):
        store = file.store()
        store.append(Example([length] * length, [-100] * length))
        store.seal()
        assert store[0].input_ids == [length] * length
        assert len(store) == 1
        assert taken() == whole
    file.close()


def test_no_room_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(OSError):
        TokenFile(tmp_path, 1 << 60)
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_examples_that_were_replaced_are_not_read(tmp_path: Path) -> None:
    file = TokenFile(tmp_path, 4096)
    older = file.store()
    older.append(Example([1, 2], [-100, 2]))
    older.seal()
    file.store().append(Example([3, 4], [-100, 4]))
    with pytest.raises(RuntimeError, match="replaced"):
        older[0]
