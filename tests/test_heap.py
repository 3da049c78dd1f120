"""What a process asks of its allocator, as the system sees it."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from fedpriv import heap

STEPS = """
import resource
import numpy as np
from fedpriv import heap
if {keep}:
    heap.keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(6):
    if step == 2:
        before = faults()
    parts = [np.ones(1 << 22) for _ in range(3)]
    del parts
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about glibc")
def test_freed_memory_is_used_again() -> None:
    """Three pieces of 32 MB a step: 24,576 pages, where they are fresh."""
    fresh = {}
    for keep in (False, True):
        command = [sys.executable, "-c", STEPS.format(keep=keep)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        fresh[keep] = int(done.stdout)
    assert fresh[True] < 1000 < fresh[False]


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """A library without the function."""

    monkeypatch.setattr(heap.ctypes, "CDLL", lambda name: Other())
    heap.share_heap()
    heap.keep_freed_memory()
