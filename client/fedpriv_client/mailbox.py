"""Hold messages for a busy site: never more than it can use."""

from __future__ import annotations

import threading
from collections import deque

from flwr.app import Message, MessageType, Metadata

QUESTIONS = (MessageType.QUERY, f"{MessageType.QUERY}.report")
HANDOVER = f"{MessageType.QUERY}.adapter"
STEPS = (MessageType.TRAIN, f"{MessageType.TRAIN}.set")
MOST = 4  # questions that wait


class Mailbox:
    """Pass messages from the thread that asks for them to the thread that answers.

    Only the latest request for a step, or for a share of its sum, waits: the others were asked
    again, or their round is over. Only the newest adapter waits, because each may be large. Of the
    questions the newest few wait.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._boxes: list[deque[Message]] = [deque(maxlen=most) for most in (MOST, 1, 1)]
        self._questions, self._step, self._handover = self._boxes  # they are emptied in this order
        self._closed = False

    def wants(self, metadata: Metadata) -> bool:
        """Tell whether a message is wanted, before more of it is fetched."""
        kind = metadata.message_type
        with self._news:
            is_newest = not self._step or _round(metadata) >= _round(self._step[0].metadata)
            return kind in (*QUESTIONS, HANDOVER) or (kind in STEPS and is_newest)

    def put(self, message: Message) -> None:
        """Add a message that is wanted, to wait for its turn."""
        others = {HANDOVER: self._handover, **dict.fromkeys(STEPS, self._step)}
        with self._news:
            others.get(message.metadata.message_type, self._questions).append(message)
            self._news.notify()

    def get(self) -> Message | None:
        """Wait for the next message, questions first; return None when the mailbox is closed."""
        with self._news:
            self._news.wait_for(lambda: self._closed or any(self._boxes))
            return None if self._closed else next(filter(None, self._boxes)).popleft()

    def clear(self) -> None:
        """Forget all messages that wait."""
        with self._news:
            for box in self._boxes:
                box.clear()

    def close(self) -> None:
        """Give out no more messages."""
        with self._news:
            self._closed = True
            self._news.notify()


def _round(metadata: Metadata) -> int:
    group = metadata.group_id
    return int(group) if len(group) < 10 and group.isdecimal() else 0
