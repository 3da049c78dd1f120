"""Who is there: sites hold a request open while they wait, so a lost connection shows at once."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 10.0  # seconds without a word after which a site counts as gone


class Presence:
    """When each node was last heard of; safe to use from any thread.

    A node is there while it holds a request open, and for `patience` seconds after its last
    word. A process that is killed is thus missed after `patience` seconds, a cable that is cut
    no later than that after the request it cut would have ended.
    """

    def __init__(
        self, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.patience = patience
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: defaultdict[int, int] = defaultdict(int)
        self._heard: dict[int, float] = {}

    def heard(self, node: int) -> None:
        """Note that a node said something."""
        with self._lock:
            self._heard[node] = self._clock()

    @contextmanager
    def waiting(self, node: int) -> Iterator[None]:
        """Note that a node holds a request open, for as long as it does."""
        with self._lock:
            self._waiting[node] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[node] -= 1
                self._heard[node] = self._clock()

    def forget(self, node: int) -> None:
        """Note that a node said goodbye: it is gone from now on, not in `patience` seconds."""
        with self._lock:
            self._heard.pop(node, None)

    def silence(self, node: int) -> float | None:
        """Return seconds since a node's last word, 0 while it waits; None if it was never there."""
        with self._lock:
            if self._waiting[node] > 0:
                return 0.0
            heard = self._heard.get(node)
            return None if heard is None else self._clock() - heard

    def is_there(self, node: int) -> bool:
        silence = self.silence(node)
        return silence is not None and silence < self.patience
