"""What a trial found is found once for the same model, settings, versions and processor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from architectures import save_tiny

from fedpriv import kept as module
from fedpriv.kept import FOLDER, kept
from fedpriv.models import trial
from fedpriv.models.base import load_base
from fedpriv.models.config import ModelSection

SAME = {"trial": "size", "length": 8}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    return tmp_path / "kept"


class Finder:
    """Finds 1, then 2, and so on."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> list[int]:
        self.asked += 1
        return [self.asked]


def test_it_is_found_once(folder: Path) -> None:
    find = Finder()
    assert [kept(SAME, find) for _ in range(3)] == [[1]] * 3
    assert kept({**SAME, "length": 16}, find) == [2]
    assert len(list(folder.iterdir())) == 2 and folder.stat().st_mode & 0o77 == 0


def test_another_machine_or_version_finds_it_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Finder()
    kept(SAME, find)
    monkeypatch.setattr(module, "_machine", lambda: {"processor": "another"})
    assert kept(SAME, find) == [2]


@pytest.mark.parametrize(
    "name",
    [
        "ATEN_CPU_CAPABILITY",
        "DNNL_MAX_CPU_ISA",
        "MKL_CBWR",
        "MKL_ENABLE_INSTRUCTIONS",
        "ONEDNN_DEFAULT_FPMATH_MODE",
        "ONEDNN_MAX_CPU_ISA",
    ],
)
def test_other_instructions_find_it_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whoever asks a library for others gets other rounding."""
    find = Finder()
    kept(SAME, find)
    monkeypatch.setenv(name, "another")
    module._machine.cache_clear()
    assert kept(SAME, find) == [2]
    module._machine.cache_clear()


def test_another_processor_of_that_name_finds_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a hypervisor may hide what a processor can do."""
    one = b"processor : 0\nmodel name : A\ncpu MHz : 2000\nflags : avx2\n\nprocessor : 1\n"
    seen = []
    for change in ((b"", b""), (b"2000", b"3000"), (b"avx2", b"avx2 amx_bf16"), (b"A", b"B")):
        monkeypatch.setattr(Path, "read_bytes", lambda _, change=change: one.replace(*change))
        seen.append(module._processor())
    assert seen[0] == seen[1] and len(set(seen)) == 3


@pytest.mark.parametrize("content", ["", "{}", "[1]", "null", '{"found', "[" * 10_000])
def test_a_file_that_says_nothing_is_none(folder: Path, content: str) -> None:
    find = Finder()
    kept(SAME, find)
    [file] = folder.iterdir()
    file.write_text(content)
    assert kept(SAME, find) == [2] == kept(SAME, find)


def test_where_nothing_can_be_written_it_is_found_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for where in ("", str(tmp_path / "file" / "below")):
        monkeypatch.setenv(FOLDER, where)
        find = Finder()
        assert [kept(SAME, find) for _ in range(2)] == [[1], [2]]


def test_a_process_that_serves_writes_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there is read, and what is found is kept in memory, on whatever disk."""
    before, find = Finder(), Finder()
    kept(SAME, before)
    with module.in_memory_alone():
        assert kept(SAME, find) == [1] and not find.asked
        assert [kept({"trial": "other"}, find) for _ in range(2)] == [[1], [1]]
        assert len(list(folder.iterdir())) == 1
        monkeypatch.setattr(module, "MOST", 0)
        assert [kept({"trial": "third"}, find) for _ in range(2)] == [[2], [3]]
    assert module._MEMORY is None


def test_of_two_sites_in_a_process_the_last_one_ends_it(folder: Path) -> None:
    first, second = module.in_memory_alone(), module.in_memory_alone()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    kept(SAME, Finder())
    assert not folder.exists()
    second.__exit__(None, None, None)
    kept(SAME, Finder())
    assert len(list(folder.iterdir())) == 1


def test_the_oldest_are_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's proposals may ask for many trials."""
    monkeypatch.setattr(module, "MOST", 3)
    for length in range(6):
        kept({**SAME, "length": length}, Finder())
        for file in folder.iterdir():
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
    assert len(list(folder.iterdir())) == 3
    find = Finder()
    assert kept({**SAME, "length": 5}, find) == [1] and not find.asked
    kept({**SAME, "length": 0}, find)
    assert find.asked


def test_what_failed_is_not_kept(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        kept(SAME, lambda: 1 // 0)
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["llama", "gemma2", "falcon"])
def test_a_model_is_tried_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Until its files or the length of texts are others."""
    save_tiny(kind, "causal-lm", tmp_path / kind)
    section = ModelSection(name=str(tmp_path / kind), max_length=16)
    first = load_base(section).model
    with monkeypatch.context() as patched:
        patched.setattr(trial.Trial, "__init__", lambda *_: pytest.fail("tried"))
        again = load_base(section).model
        assert again.config._attn_implementation == first.config._attn_implementation
        other = section.model_copy(update={"max_length": 24})
        with pytest.raises(BaseException, match="tried"):
            load_base(other)
