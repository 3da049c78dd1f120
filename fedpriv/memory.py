"""How much memory a process may have, of the machine or of its container."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def limit() -> int | None:
    """Return the bytes that the container may have (cgroup v2); None without a limit."""
    try:
        return int((CGROUP / "memory.max").read_text())
    except (OSError, ValueError):  # no container, or "max"
        return None


def left() -> int | None:
    """Return the container's free bytes, with file caches as free; None without a limit."""
    most = limit()
    if most is None:
        return None
    try:
        taken = int((CGROUP / "memory.current").read_text())
        lines = (CGROUP / "memory.stat").read_text().splitlines()
        cached = int(dict(line.split() for line in lines)["inactive_file"])  # it is given back
    except (OSError, ValueError, KeyError):
        return None
    return max(0, most - taken + cached)


def total(device: object = "cpu") -> int:
    """Return the bytes that a torch device has for this process and others, taken or not.

    They are the same before and after a private step; free bytes are not.
    """
    if str(device) != "cpu":
        import torch

        return int(torch.cuda.get_device_properties(str(device)).total_memory)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, limit() or machine)
