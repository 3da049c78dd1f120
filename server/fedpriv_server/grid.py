"""The nodes of a network where sites vanish, come back, and lose messages.

A request is posted again, as another message with the same content, whenever its site can't
have it. That is so if the site asks for messages without having confirmed that one, or if it
connected anew. Sites answer repeated requests from their outbox, so posting again costs nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from flwr.app import Message, MessageType

from fedpriv_server.broker import MessageBroker, read_reply
from fedpriv_server.flower.messages import set_message_id
from fedpriv_server.flower.state import Kept
from fedpriv_server.upload import Upload, UploadLimits

MARGIN = 600.0  # seconds that a message outlives the wait for its reply
REPEATS, PERIOD = 5, 5.0  # a node is told everything again at most 5 times in 5 seconds


@dataclass
class _Request:
    """What a node was asked, in one message or in several.

    Attributes:
        upload: where its reply is stored.
        posted: ids of the messages that carry the request.
        taken: ids of the messages that the node took out of its mailbox, and has not confirmed.
        arriving: message → the reply to it, whose content may still be incomplete.
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


class NetworkGrid:
    """Sends to the nodes of a broker and gathers what they answer.

    Use it for one round at a time: it holds the requests of one round.
    """

    def __init__(self, broker: MessageBroker) -> None:
        self.broker, self._state = broker, broker.state
        self._lock = threading.RLock()
        self._news = threading.Event()
        self._open: dict[str, _Request] = {}
        self._open_of: defaultdict[int, dict[str, _Request]] = defaultdict(dict)  # node → its own
        self._answered: dict[str, Message] = {}  # request → its complete reply
        self._greetings: dict[int, _Request] = {}
        self._newcomers: set[int] = set()
        self._told: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REPEATS))
        self._forgetful: set[int] = set()  # nodes to tell everything, as soon as PERIOD allows

    # What the rounds use

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are connected now, in the order of their sites' names."""
        names = self.broker.names
        there = [node for node in names if self.broker.presence.is_there(node)]
        return sorted(there, key=lambda node: names[node])

    def _push(self, message: Message, timeout: float) -> _Request:
        metadata, content = message.metadata, self._state.keep(message.content)
        node, kind, group = metadata.dst_node_id, metadata.message_type, metadata.group_id
        upload = self.broker.expect(node, UploadLimits.of_reply_to(message.content))
        key, ttl = uuid.uuid4().hex, timeout + MARGIN
        request = _Request(key, node, content, upload, kind, group, ttl)
        set_message_id(message, request.key)
        with self._lock:
            self._open[request.key] = self._open_of[request.node][request.key] = request
            if request.kind == MessageType.QUERY:
                old = self._greetings.get(request.node)
                self._greetings[request.node] = request
                if old is not None:
                    self._say_no_more(old)
            self._post(request)
        return request

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> Iterator[Message]:
        """Post messages and yield replies as they come. Each is removed when the next is asked for.

        End when all nodes have answered, when those that have not are gone, or after `timeout`
        seconds.
        """
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
                        yield read_reply(reply, request.upload, request.key)
                    finally:  # also when the caller asks for no more
                        self._close(request)
                left = deadline - time.monotonic()
                is_there = self.broker.presence.is_there
                if left <= 0 or not any(is_there(request.node) for request in waiting.values()):
                    break
                self._news.wait(min(left, 0.5))
        finally:
            for request in waiting.values():
                self._close(request)

    def _taken(self, requests: dict[str, _Request]) -> list[tuple[_Request, Message]]:
        """Return the requests that are answered, with their replies. Return each only once."""
        with self._lock:
            keys = [key for key in self._answered if key in requests]
            return [(requests[key], self._answered.pop(key)) for key in keys]

    def _close(self, request: _Request) -> None:
        with self._lock:
            self._open.pop(request.key, None)
            self._open_of[request.node].pop(request.key, None)
            self._answered.pop(request.key, None)
            self._withdraw(request)
            if request is not self._greetings.get(request.node):  # which is kept, to be said again
                self._state.release(request.content)
        request.upload.remove()  # without the lock, because this waits for the disk

    def _say_no_more(self, greeting: _Request) -> None:
        """Release what was kept of a closed request, which may have been posted again since."""
        if greeting.key not in self._open:
            self._withdraw(greeting)
            self._state.release(greeting.content)

    def _withdraw(self, request: _Request) -> None:
        self._state.discard(set(request.posted))
        request.arriving.clear()
        request.posted.clear()

    def _post(self, request: _Request) -> None:
        request.taken.clear()
        posted = self.broker.post(
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
        """Stop telling nodes what the job is, because it has ended."""
        with self._lock:
            while self._greetings:
                self._say_no_more(self._greetings.popitem()[1])

    # What the fleet API tells about nodes

    def arrived(self, node: int) -> None:
        """Tell a new process, which knows nothing, its job and then the unanswered requests."""
        with self._lock:
            self._newcomers.add(node)
            self._say_again(node)
        self._news.set()

    def asks(self, node: int) -> None:
        """Post again what got lost. A node that asks for more has read only what it confirmed."""
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
        """Take up the stored part of a node's reply. It may be the last part."""
        with self._lock:
            for request in self._open_of[node].values():
                for reply in self._state.replies(set(request.posted)):
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
            self._withdraw(request)  # else a later request might be read first
            self._post(request)


class JobGrid:
    """Knows only the nodes of a job's own sites, although others may be connected.

    Args:
        members: names of the job's sites.
    """

    def __init__(self, grid: NetworkGrid, members: Set[str]) -> None:
        self._grid, self._members = grid, members

    @property
    def names(self) -> dict[int, str]:
        """The admitted nodes of the job's sites: node → name of its site."""
        known = self._grid.broker.names
        return {node: name for node, name in known.items() if name in self._members}

    def get_node_ids(self) -> list[int]:
        """Return the job's nodes that are connected now, in the order of their sites' names."""
        names = self.names
        return [node for node in self._grid.get_node_ids() if node in names]

    def newcomers(self) -> set[int]:
        """Return the nodes that connected since the last call, for the first time or anew."""
        return self._grid.newcomers()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> Iterator[Message]:
        """Send messages and yield the replies. See `NetworkGrid.send_and_receive`."""
        return self._grid.send_and_receive(messages, timeout=timeout)
