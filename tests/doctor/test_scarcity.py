"""What a small machine says before a run: each lack alone, all together, and none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedpriv import memory
from fedpriv.doctor import memory as module
from fedpriv.doctor.memory import scarcity

GB = 10**9


@pytest.fixture(autouse=True)
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two cores, AVX2 and memory without end, told by the file of its processors."""
    processors = tmp_path / "cpuinfo"
    processors.write_text("processor\t: 0\nflags\t\t: fpu sse4_2 avx avx2\n")
    monkeypatch.setattr(module, "_PROCESSORS", processors)
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    return processors


def test_a_machine_that_has_enough_says_nothing() -> None:
    assert scarcity(1) is None


def test_memory_of_the_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "left", lambda: GB)
    assert scarcity(GB) is None
    said = scarcity(2 * GB)
    assert said is not None
    assert "only 1.0 GB of memory are free, and the run takes 2.0 GB" in said


def test_one_core_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    said = scarcity(1)
    assert said is not None
    assert "one core" in said


def test_a_processor_without_avx2_is_said(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large.write_text("flags\t\t: fpu sse4_2 avx\n")
    said = scarcity(1)
    assert said is not None
    assert "no AVX2" in said
    monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
    assert scarcity(1) is None
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    large.unlink()
    assert scarcity(1) is None


def test_the_file_says_what_torch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    if "ATEN_CPU_CAPABILITY" in os.environ:
        pytest.skip("torch is told what to use")
    assert module._has_avx2() == (torch.backends.cpu.get_cpu_capability() != "DEFAULT")


def test_all_that_lacks_is_one_sentence(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large.write_text("flags\t\t: fpu\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    said = scarcity(1 << 60)
    assert said is not None
    assert said.count(".\n") == 0
    assert said.endswith(".")
    assert all(part in said for part in ("memory", "one core", "AVX2"))
