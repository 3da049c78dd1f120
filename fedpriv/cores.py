"""How many cores a process may use."""

from __future__ import annotations

import os


def usable() -> int:
    """Count the cores that this process is bound to, or else all cores of the machine."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
