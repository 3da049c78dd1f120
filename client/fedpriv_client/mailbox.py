"""What waits for an answer at a site that is busy: never more than it can do something with."""

from __future__ import annotations

import threading
from collections import deque

from flwr.app import Message, MessageType, Metadata

QUESTIONS = (MessageType.QUERY, f"{MessageType.QUERY}.report")
HANDOVER = f"{MessageType.QUERY}.adapter"
STEPS = (MessageType.TRAIN, f"{MessageType.TRAIN}.set")
MOST = 4  # questions that wait


class Mailbox:
    """Messages on their way from the thread that asks for them to the one that answers.

    Of requests for a step, or for a share of its sum, one waits, the latest: the others were asked
    again, or their round is over. Of adapters the newest waits, as each may be large; of questions
    the newest few.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._step: Message | None = None
        self._handover: Message | None = None
        self._questions: deque[Message] = deque(maxlen=MOST)
        self._closed = False

    def wants(self, metadata: Metadata) -> bool:
        """Whether there is room for a message, before more of it is fetched."""
        with self._news:
            if metadata.message_type in (*QUESTIONS, HANDOVER):
                return True
            if metadata.message_type not in STEPS:
                return False
            return self._step is None or _round(metadata) >= _round(self._step.metadata)

    def put(self, message: Message) -> None:
        """Let a message that is wanted wait for its turn."""
        with self._news:
            if message.metadata.message_type in STEPS:
                self._step = message
            elif message.metadata.message_type == HANDOVER:
                self._handover = message
            else:
                self._questions.append(message)
            self._news.notify()

    def get(self) -> Message | None:
        """Wait for the next message, questions first; None when the mailbox is closed."""
        with self._news:
            self._news.wait_for(self._is_due)
            if self._closed:
                return None
            if self._questions:
                return self._questions.popleft()
            message = self._handover if self._step is None else self._step
            if self._step is None:
                self._handover = None
            self._step = None
            return message

    def _is_due(self) -> bool:
        waits = bool(self._questions) or self._step is not None or self._handover is not None
        return self._closed or waits

    def clear(self) -> None:
        """Forget what waits."""
        with self._news:
            self._step = self._handover = None
            self._questions.clear()

    def close(self) -> None:
        """Give nothing out any more."""
        with self._news:
            self._closed = True
            self._news.notify()


def _round(metadata: Metadata) -> int:
    group = metadata.group_id
    return int(group) if len(group) < 10 and group.isdecimal() else 0
