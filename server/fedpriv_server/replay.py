"""A signed request counts once: whoever copies one gets nothing for it."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable


class Replays:
    """Remembers signatures for as long as they would count. For one thread.

    Flower signs the time of a request, to the microsecond, so that is what is remembered of it.
    Ask only for keys that are admitted and times that they signed: for others nothing is worth
    remembering.

    Args:
        window: seconds from the first time that a signature is seen until it is too old, at most.
    """

    def __init__(self, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window, self._clock = window, clock
        self._seen: set[bytes] = set()
        self._ages: deque[tuple[float, bytes]] = deque()  # oldest first

    def is_first(self, public_key: bytes, timestamp: str) -> bool:
        """Tell whether this is the first request of that key and time."""
        now = self._clock()
        while self._ages and now - self._ages[0][0] > self._window:
            self._seen.remove(self._ages.popleft()[1])
        digest = hashlib.sha256(public_key + timestamp.encode()).digest()
        if digest in self._seen:
            return False
        self._seen.add(digest)
        self._ages.append((now, digest))
        return True
