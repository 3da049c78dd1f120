"""How many examples a property is tried with, or for how long."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator

import hypothesis

_USUAL = 100  # examples, where a test says nothing
_LEAST = 3


def examples(full: int) -> int:
    """So many in the nightly run, and of a property that takes long a fifth before a change."""
    return max(_LEAST, full * hypothesis.settings.default.max_examples // _USUAL)


def new_seeds(budget: float) -> Iterator[int]:
    """Give new seeds until so many seconds of the processor are gone; each is printed.

    Where a test has failed, `SEED=…` in the environment tries the seed that it printed, alone.
    """
    if "SEED" in os.environ:
        yield int(os.environ["SEED"])
        return
    until = time.process_time() + budget
    while time.process_time() < until:
        seed = secrets.randbelow(2**32)
        print("SEED:", seed)
        yield seed
