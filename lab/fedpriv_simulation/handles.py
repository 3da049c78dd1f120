"""How many sites may be open in one process at once. Each holds a few files."""

from __future__ import annotations

import contextlib
import resource

EACH = 8  # files of a site: its ledger twice, the journal, and the tokens of two populations, twice
OTHERS = 200  # files of the process itself, at most


def open_at_once(sites: int) -> int:
    """Return for how many of `sites` sites this process has files, at least one.

    If the system lets a process have more files than it starts with, this asks for as many as are
    needed.
    """
    needed = OTHERS + sites * EACH
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_less(allowed, needed):
        wanted = needed if _is_less(needed, most) else most
        with contextlib.suppress(ValueError, OSError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            allowed = wanted
    return max(1, sites if _is_less(needed, allowed) else (allowed - OTHERS) // EACH)


def _is_less(files: int, limit: int) -> bool:
    return files != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or files < limit)
