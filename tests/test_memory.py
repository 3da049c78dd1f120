"""How much memory there is, in a container and outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedpriv import memory

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_container_has_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert (memory.limit(), memory.left(), memory.total()) == (None, None, MACHINE)
    (tmp_path / "memory.max").write_text("5000\n")
    assert (memory.limit(), memory.left(), memory.total()) == (5000, None, 5000)
    (tmp_path / "memory.current").write_text("2000\n")
    (tmp_path / "memory.stat").write_text("anon 1500\ninactive_file 400\n")
    assert memory.left() == 3400
    (tmp_path / "memory.max").write_text("max\n")
    assert (memory.limit(), memory.left(), memory.total()) == (None, None, MACHINE)
    (tmp_path / "memory.max").write_text(f"{2 * MACHINE}\n")
    assert memory.total() == MACHINE
