"""A server with many open requests does not look at all of them all the time."""

from __future__ import annotations

import subprocess
import sys

import pytest

MANY = """
import gc
from fedpriv_server.serve import collect_garbage_rarely

def looks():
    return sum(generation["collections"] for generation in gc.get_stats())

def work():
    before = looks()
    held = [[number] for number in range(40_000)]
    return looks() - before, gc.get_freeze_count()

usual, _ = work()
collect_garbage_rarely()
print(usual, *work())
"""


@pytest.mark.slow
def test_garbage_is_looked_for_seldom() -> None:
    child = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    usual, seldom, frozen = map(int, child.stdout.split())
    assert usual > 15 and seldom <= 1
    assert frozen > 1000, "what was imported is not looked at"
