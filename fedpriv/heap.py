"""Change what glibc does with freed memory: two of its habits are expensive here.

Without glibc, nothing happens.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # from malloc.h
_LARGEST = 2**31 - 1


def share_heap() -> None:
    """Let all threads allocate from one heap.

    By default every thread keeps the memory that it has freed. So a server would hold the largest
    objects that each of its threads ever moved.
    """
    _set(_ARENA_MAX, 1)


def keep_freed_memory() -> None:
    """Keep the memory that tensors have freed for the next tensors.

    By default large pieces go back to the system, which zeroes fresh pages for the next step. In a
    `mixed` step of the second shape of `benchmarks/step.py` these are 27,000 pages, a tenth of its
    time.
    """
    _set(_MMAP_THRESHOLD, _LARGEST)
    _set(_TRIM_THRESHOLD, _LARGEST)


def _set(parameter: int, value: int) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(parameter, value)
