"""What goes into the store comes out, and nothing is left of it."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.encode import Example
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import SomeUnits, TokenFile, bytes_needed

HERE = Path(tempfile.gettempdir())
TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30)


@given(st.lists(TOKENS, max_size=12), st.booleans(), st.lists(st.integers(0, 3), min_size=12))
def test_examples_come_back_as_they_were(
    texts: list[list[int]], classes: bool, owners: list[int]
) -> None:
    """Each with its unit, in the order in which they came."""
    examples = [
        Example(ids, len(ids) if classes else [-100, *(i // 2 for i in ids[1:])]) for ids in texts
    ]
    store, units = TokenFile(HERE).store(), [[] for _ in range(4)]
    assert [store.add_unit() for _ in units] == list(range(4))
    for owner, example in zip(owners, examples, strict=False):
        store.append(owner, example)
        units[owner].append(example)
    assert [list(store[place]) for place in reversed(range(4))] == units[::-1]
    assert [store.examples_of(place) for place in range(4)] == list(map(len, units))


@given(st.lists(st.integers(0, 3), max_size=12))
def test_units_are_a_sequence(sizes: list[int]) -> None:
    stored, units = TokenFile(HERE).store(), []
    for owner, size in enumerate(sizes):
        units.append(tuple(Example([owner, part], [-100, part]) for part in range(size)))
        place = stored.add_unit()
        for example in units[-1]:
            stored.append(place, example)
    assert list(stored) == units
    if units:
        assert stored[-1] == units[-1]
    with pytest.raises(IndexError):
        stored[len(units)]
    assert list(SomeUnits(stored, range(0, len(units), 2))) == units[::2]


@pytest.mark.parametrize("task", ["causal-lm", "classification"])
@pytest.mark.parametrize("units", [1, 5000])
def test_what_is_reserved_is_what_the_largest_records_take(
    tmp_path: Path, task: Any, units: int
) -> None:
    spec = DataSpec({}, task, (), 5, "patient", 2)
    file = TokenFile(tmp_path, bytes_needed(spec, units))
    size = file_size(file)
    store = file.store()
    for place in range(units):
        store.add_unit()
        for _ in range(2):
            store.append(place, Example([7] * 5, [7] * 5 if task == "causal-lm" else 1))
    assert file_size(file) == size
    store.append(place, Example([7], 1 if task != "causal-lm" else [7]))
    assert file_size(file) > size, "there was more than it takes"


def file_size(file: TokenFile) -> int:
    return os.fstat(file._file.fileno()).st_size


def test_what_has_no_room_is_told_and_spoils_nothing(tmp_path: Path) -> None:
    store = TokenFile(tmp_path).store()
    short, long = Example([1, 2], [-100, 2]), Example([7] * 3000, [7] * 3000)
    assert [store.add_unit() for _ in range(5000)]
    store.append(0, short)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        for place in (0, 1):
            with pytest.raises(OSError):
                store.append(place, long)
        store.append(0, short)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [store[0], store[1], store[4999]] == [(short, short), (), ()]
    store.append(4999, long)
    assert store[4999] == (long,)


def test_the_file_has_no_name_and_goes_with_its_store(tmp_path: Path) -> None:
    store = TokenFile(tmp_path).store()
    store.append(store.add_unit(), Example([1, 2, 3], [-100, 2, 3]))
    assert store[0][0].input_ids == [1, 2, 3]
    assert list(tmp_path.iterdir()) == []

    def is_open() -> bool:
        files = Path("/proc/self/fd").iterdir()
        return any(str(tmp_path) in str(file.readlink()) for file in files if file.is_symlink())

    assert is_open()
    del store
    gc.collect()
    assert not is_open()


def test_room_is_taken_at_once_and_kept_for_every_store(tmp_path: Path) -> None:
    file = TokenFile(tmp_path, 1 << 20)

    def taken() -> int:
        return os.fstat(file._file.fileno()).st_blocks * 512

    assert taken() >= 1 << 20
    whole = taken()
    for length in (3, 5000, 1):
        store = file.store()
        store.append(store.add_unit(), Example([length] * length, [-100] * length))
        assert store[0][0].input_ids == [length] * length
        assert len(store) == 1
        assert taken() == whole
    file.close()


def test_what_is_closed_is_not_read(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    store = file.store()
    store.append(store.add_unit(), Example([1, 2], [-100, 2]))
    file.close()
    with pytest.raises(ValueError, match="closed"):
        store[0]


def test_no_room_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(OSError):
        TokenFile(tmp_path, 1 << 60)
    assert shutil.disk_usage(tmp_path).free > free - (1 << 30)


def test_examples_that_were_replaced_are_not_read(tmp_path: Path) -> None:
    file = TokenFile(tmp_path, 4096)
    older = file.store()
    older.append(older.add_unit(), Example([1, 2], [-100, 2]))
    newer = file.store()
    newer.append(newer.add_unit(), Example([3, 4], [-100, 4]))
    with pytest.raises(RuntimeError, match="replaced"):
        older[0]
