"""Hold requests for messages open until there is a message. So a lost connection shows at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

HOLD = 5.0  # seconds; a request for messages is held open this long or longer
LONGEST_HOLD = 25.0  # seconds; a site hangs up after 30 seconds without a byte
QUESTIONS = 40.0  # requests a second, of all sites together, that are answered without a message
PATIENCE = 10.0  # seconds without a word after which a site counts as gone


class LongPoll:
    """Holds a bell for each node, and knows which visit of a node is the latest.

    The methods from `visit` on are for the web server's loop. Any thread may call the others.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bells: dict[int, asyncio.Event] = {}
        self._visits: defaultdict[int, int] = defaultdict(int)
        self._is_closed = False

    def ring(self, node: int) -> None:
        """Wake a node's request. There may be a message, or it is answered without one."""
        loop, bell = self._loop, self._bells.get(node)
        if loop is not None and bell is not None:
            loop.call_soon_threadsafe(bell.set)

    def supersede(self, node: int) -> None:
        """Give no message to the requests of a node that are already open."""
        self._visits[node] += 1

    def close(self) -> None:
        """Let every open request be answered now, and each later one at once."""
        self._is_closed = True
        for node in list(self._bells):
            self.ring(node)

    # For one request for messages, in this order

    def visit(self, node: int) -> int:
        """Begin to wait. Return the number of the node's visit, which may end before the wait."""
        self._loop = asyncio.get_running_loop()
        if node not in self._bells:
            self._bells[node] = asyncio.Event()
            self._bells[node].set()  # messages may have come before there was a bell
        return self._visits[node]

    async def wait(self, node: int, gone: Callable[[], Awaitable[None]]) -> None:
        """Wait until there is a message, the hold time is over, or the node has hung up.

        Args:
            gone: returns when the node has hung up.
        """
        bell = self._bells[node]
        if bell.is_set() or self._is_closed:
            return
        waiting = [asyncio.ensure_future(bell.wait()), asyncio.ensure_future(gone())]
        try:
            hold = min(max(HOLD, len(self._bells) / QUESTIONS), LONGEST_HOLD)
            await asyncio.wait(waiting, timeout=hold, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def is_latest(self, node: int, visit: int) -> bool:
        """Tell whether the node neither connected anew nor was turned out since that visit."""
        return self._visits[node] == visit

    def answer(self, node: int) -> None:
        """Note that the mailbox is read now. A message that comes later rings again."""
        self._bells[node].clear()

    def answered(self, node: int) -> None:
        """Note that a message was taken, and that another one waits."""
        self._bells[node].set()


class Presence:
    """Knows when each node was last heard from. It is safe to use from any thread.

    A node is there while it holds a request open, and for `patience` seconds after its last
    word. So a killed process is missed after `patience` seconds. A cut cable is missed at most
    `patience` seconds after the time when the open request would have ended.
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
        """Count a node as holding a request open while the context lasts."""
        with self._lock:
            self._waiting[node] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[node] -= 1
                self._heard[node] = self._clock()

    def forget(self, node: int) -> None:
        """Note that a node said goodbye. It is gone at once, not only after `patience` seconds."""
        with self._lock:
            self._heard.pop(node, None)

    def is_there(self, node: int) -> bool:
        """Tell whether a node waits now, or was heard from in the last `patience` seconds."""
        with self._lock:
            heard = self._heard.get(node)
            is_late = heard is None or self._clock() - heard >= self.patience
            return self._waiting[node] > 0 or not is_late
