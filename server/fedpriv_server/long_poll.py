"""Questions for messages are held open until there is one; so a lost connection shows at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

HOLD = 5.0  # seconds that a question is held open, at least
LONGEST_HOLD = 25.0  # a site hangs up after 30 seconds without a byte
QUESTIONS = 40.0  # in a second, of all sites together, that are answered with nothing
PATIENCE = 10.0  # seconds without a word after which a site counts as gone


class LongPoll:
    """A bell for each node, and which visit of a node is the latest.

    `wait` and what belongs to it are for the web server's loop, the rest for any thread.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bells: dict[int, asyncio.Event] = {}
        self._visits: defaultdict[int, int] = defaultdict(int)
        self._is_closed = False

    def ring(self, node: int) -> None:
        """Wake a node's request: there may be a message, or it is to be answered without one."""
        loop, bell = self._loop, self._bells.get(node)
        if loop is not None and bell is not None:
            loop.call_soon_threadsafe(bell.set)

    def supersede(self, node: int) -> None:
        """Take no message out of the mailbox for questions of a node that are open by now."""
        self._visits[node] += 1

    def close(self) -> None:
        """Let every question be answered, from now on at once."""
        self._is_closed = True
        for node in list(self._bells):
            self.ring(node)

    # Of a question, in this order

    def visit(self, node: int) -> int:
        """Begin to wait; gives the node's visit, which may be over when the wait is."""
        self._loop = asyncio.get_running_loop()
        if node not in self._bells:
            self._bells[node] = asyncio.Event()
            self._bells[node].set()  # messages may have come before there was a bell
        return self._visits[node]

    async def wait(self, node: int, gone: Callable[[], Awaitable[None]]) -> None:
        """Wait for a message, or long enough, or until the one who asks goes away.

        Args:
            gone: returns when the one who asks is gone.
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
        """Tell whether the node did not connect anew, and was not turned out, since then."""
        return self._visits[node] == visit

    def answer(self, node: int) -> None:
        """Note that the mailbox is looked into now: whatever comes after this rings again."""
        self._bells[node].clear()

    def answered(self, node: int) -> None:
        """Note that a message was taken, and that there is another."""
        self._bells[node].set()


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
