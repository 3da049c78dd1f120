"""A Flower grid over a network where sites vanish, come back, and lose messages.

A request is posted again, as another message with the same content, whenever its site can't
have it: it asks for messages without having confirmed that one, or it connected anew. Sites
answer repeated requests from their outbox, so posting again costs nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flwr.app import Message, MessageType

from fedpriv_server.broker import MessageBroker, read_reply
from fedpriv_server.flower.messages import set_message_id
from fedpriv_server.flower.state import Kept
from fedpriv_server.one_run import OneRunGrid
from fedpriv_server.shape import UploadLimits
from fedpriv_server.upload import Upload

MARGIN = 600.0  # seconds that a message outlives the wait for its reply
DAY = 86_400.0
REPEATS, PERIOD = 5, 5.0  # so many times in so many seconds is a node told everything again


@dataclass
class _Request:
    """What a node was asked, under however many messages.

    Attributes:
        upload: where its reply comes.
        posted: ids of the messages that carry it.
        taken: ids of those that the node took out of its mailbox, and has not confirmed.
        arriving: message → the reply to it, whose content need not be complete.
    """

    key: str
    node: int
    content: Kept
    upload: Upload
    kind: str
    group: str
    ttl: float
    posted: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    arriving: dict[str, Message] = field(default_factory=dict)


class NetworkGrid(OneRunGrid):
    """Sends to the nodes of a broker and gathers what they answer.

    Use one at a time: it holds the requests of one round.
    """

    def __init__(self, broker: MessageBroker) -> None:
        self._broker = broker
        self._lock = threading.RLock()
        self._news = threading.Event()
        self._open: dict[str, _Request] = {}
        self._open_of: defaultdict[int, dict[str, _Request]] = defaultdict(dict)  # node → its own
        self._answered: dict[str, Message] = {}  # request → its reply, that is complete
        self._greetings: dict[int, _Request] = {}
        self._newcomers: set[int] = set()
        self._told: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REPEATS))
        self._forgetful: set[int] = set()  # nodes to tell everything, as soon as it may be
        broker.traffic = self

    # What Flower's strategies use

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are there now, in order of their sites' names."""
        names = self._broker.names
        there = [node for node in names if self._broker.presence.is_there(node)]
        return sorted(there, key=lambda node: names[node])

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Post messages; gives an id for each, under which its reply will come."""
        return [self._push(message, DAY).key for message in messages]

    def _push(self, message: Message, timeout: float) -> _Request:
        metadata = message.metadata
        request = _Request(
            key=uuid.uuid4().hex,
            node=metadata.dst_node_id,
            content=self._broker.keep(message.content),
            upload=self._broker.expect(
                metadata.dst_node_id, UploadLimits.of_reply_to(message.content)
            ),
            kind=metadata.message_type,
            group=metadata.group_id,
            ttl=timeout + MARGIN,
        )
        set_message_id(message, request.key)
        with self._lock:
            self._open[request.key] = self._open_of[request.node][request.key] = request
            if request.kind == MessageType.QUERY:
                old = self._greetings.get(request.node)
                self._greetings[request.node] = request
                if old is not None and old.key not in self._open:
                    self._withdraw(old)  # perhaps it was said again
                    self._broker.release(old.content)
            self._post(request)
        return request

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are there by now; each is given out once."""
        with self._lock:
            wanted = {key: self._open[key] for key in message_ids if key in self._open}
        return [self._read(request, reply) for request, reply in self._taken(wanted)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Post messages and give the replies as they come, removing each when the next is asked.

        Ends when all have answered, when those that have not are gone, or after `timeout`
        seconds.
        """
        timeout = DAY if timeout is None else timeout
        deadline = time.monotonic() + timeout
        pushed = [self._push(message, timeout) for message in messages]
        return self._gather({request.key: request for request in pushed}, deadline)

    def _gather(self, waiting: dict[str, _Request], deadline: float) -> Iterator[Message]:
        try:
            while waiting:
                self._news.clear()
                for request, reply in self._taken(waiting):
                    del waiting[request.key]
                    try:
                        yield self._read(request, reply)
                    finally:  # also when nobody asks for more
                        self._close(request)
                left = deadline - time.monotonic()
                is_there = self._broker.presence.is_there
                if left <= 0 or not any(is_there(request.node) for request in waiting.values()):
                    break
                self._news.wait(min(left, 0.5))
        finally:
            for request in waiting.values():
                self._close(request)

    def _taken(self, requests: dict[str, _Request]) -> list[tuple[_Request, Message]]:
        """Return the requests that are answered by now, each given out once."""
        with self._lock:
            keys = [key for key in self._answered if key in requests]
            return [(requests[key], self._answered.pop(key)) for key in keys]

    def _read(self, request: _Request, reply: Message) -> Message:
        return read_reply(reply, request.upload, request.key)

    def _close(self, request: _Request) -> None:
        with self._lock:
            self._open.pop(request.key, None)
            self._open_of[request.node].pop(request.key, None)
            self._answered.pop(request.key, None)
            self._withdraw(request)
            if request is not self._greetings.get(request.node):  # that is kept to be said again
                self._broker.release(request.content)
        request.upload.remove()  # without the lock, for it waits for the disk

    def _withdraw(self, request: _Request) -> None:
        self._broker.discard(set(request.posted))
        request.arriving.clear()
        request.posted.clear()

    def _post(self, request: _Request) -> None:
        request.taken.clear()
        posted = self._broker.post(
            request.upload, request.content, request.kind, request.group, request.ttl
        )
        if posted is not None:
            request.posted.append(posted)

    def newcomers(self) -> set[int]:
        """Return the nodes that connected since the last call, for the first time or anew."""
        with self._lock:
            newcomers, self._newcomers = self._newcomers, set()
        return newcomers

    def forget(self) -> None:
        """Say no more what the job is: it has ended."""
        with self._lock:
            for request in [*self._greetings.values()]:
                del self._greetings[request.node]
                if request.key not in self._open:
                    self._withdraw(request)
                    self._broker.release(request.content)

    # What the broker tells of its nodes

    def arrived(self, node: int) -> None:
        """Tell a new process, which knows nothing, what the job is and then what is unanswered."""
        with self._lock:
            self._newcomers.add(node)
            self._say_again(node)
        self._news.set()

    def asks(self, node: int) -> None:
        """Say again what got lost. A node that asks for more has read all that it confirmed."""
        with self._lock:
            if node in self._forgetful or any(request.taken for request in self._said(node)):
                self._say_again(node)

    def took(self, node: int, message_id: str) -> None:
        """Note that a message is on its way to its node."""
        with self._lock:
            for request in self._said(node):
                if message_id in request.posted:
                    request.taken.add(message_id)

    def confirmed(self, node: int, message_id: str) -> None:
        """Note that a message, with all its objects, has reached its node."""
        with self._lock:
            for request in self._said(node):
                request.taken.discard(message_id)

    def stored(self, node: int) -> None:
        """Take up what was stored of a node's reply, which may be the last of it."""
        with self._lock:
            for request in self._open_of[node].values():
                for reply in self._broker.replies(set(request.posted)):
                    request.arriving[reply.metadata.reply_to_message_id] = reply
                for reply in list(request.arriving.values()):
                    if request.upload.take(reply.metadata.message_id):
                        self._answered[request.key] = reply
                        request.arriving.clear()
                        self._news.set()

    def _said(self, node: int) -> list[_Request]:
        """Return the request that told a node its job, if any, then the unanswered requests."""
        requests = list(self._open_of[node].values())
        greeting = self._greetings.get(node)
        if greeting is not None and greeting not in requests:
            requests.append(greeting)
        return sorted(requests, key=lambda item: item.kind != MessageType.QUERY)

    def _say_again(self, node: int) -> None:
        now, told = time.monotonic(), self._told[node]
        if len(told) == REPEATS and now - told[0] < PERIOD:
            self._forgetful.add(node)
            return
        told.append(now)
        self._forgetful.discard(node)
        for request in self._said(node):
            self._withdraw(request)  # or a later one might be read first
            self._post(request)
