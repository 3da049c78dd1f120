"""A signed request counts once: whoever copies one gets nothing for it."""

from __future__ import annotations

import time
from collections.abc import Callable


class Replays:
    """Remembers signatures for as long as they would count. For one thread.

    Flower signs the time of a request, to the microsecond, so that is what is remembered of it.

    Args:
        window: seconds from the first time that a signature is seen until it is too old, at most.
    """

    def __init__(self, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock = window, clock
        self._seen: dict[tuple[bytes, str], float] = {}  # oldest first

    def is_first(self, public_key: bytes, timestamp: str) -> bool:
        """Whether this is the first request of that key and time."""
        now = self._clock()
        for known, at in list(self._seen.items()):
            if now - at <= self._window:
                break
            del self._seen[known]
        if (public_key, timestamp) in self._seen:
            return False
        self._seen[public_key, timestamp] = now
        return True
