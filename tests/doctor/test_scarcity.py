"""What a small machine says before a run: each lack alone, all together, and none."""

from __future__ import annotations

import os

import pytest

from fedpriv import memory
from fedpriv.doctor.memory import scarcity

GB = 10**9


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores and memory without end."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)


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


def test_all_that_lacks_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    said = scarcity(1 << 60)
    assert said is not None
    assert said.count(".\n") == 0
    assert said.endswith(".")
    assert all(part in said for part in ("memory", "one core"))
