"""A Flower grid inside one process: every node is a ClientApp, every message a thread's work."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from flwr.app import Context, Error, Message, RecordDict

from fedpriv_server.flower import messages as flower
from fedpriv_server.flower.messages import APP_FAILED, SERVER_NODE, set_message_id
from fedpriv_server.one_run import OneRunGrid

FIRST_SITE = SERVER_NODE + 1
RUN = 1


def set_identity() -> None:
    """Make this process the server of an inline run, for the messages that it makes."""
    flower.set_identity(RUN, RUN)


class InlineGrid(OneRunGrid):
    """Runs the apps of `apps` (node id → ClientApp, or what answers like one) on `threads` threads.

    Each of the threads calls `begin` first.

    Contents are copied on both ways, so that no party can change another's arrays. Use it as a
    context manager: leaving it waits for what is running.
    """

    def __init__(
        self,
        apps: Mapping[int, Callable[[Message, Context], Message]],
        threads: int,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        set_identity()
        self._apps = dict(apps)
        self._contexts = {
            node: Context(
                run_id=RUN, node_id=node, node_config={}, state=RecordDict(), run_config={}
            )
            for node in self._apps
        }
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="site", initializer=begin)
        self._pending: dict[str, Future[Message]] = {}

    def __enter__(self) -> InlineGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def get_node_ids(self) -> list[int]:
        """Every node, in order."""
        return list(self._apps)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start the nodes' work on messages, and return the messages' ids."""
        ids = []
        for message in messages:
            number = uuid.uuid4().hex
            set_message_id(message, number)
            self._pending[number] = self._pool.submit(self._work, copy.deepcopy(message))
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies that are there by now; each is given out once."""
        ready = [number for number in message_ids if self._is_ready(number)]
        return [self._pending.pop(number).result() for number in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Send messages, wait at most `timeout` seconds, and return the replies there are."""
        ids = self.push_messages(messages)
        wait([self._pending[number] for number in ids], timeout=timeout)
        replies = self.pull_messages(ids)
        for number in ids:
            self._pending.pop(number, None)  # too late for this round
        return replies

    def _is_ready(self, number: str) -> bool:
        return number in self._pending and self._pending[number].done()

    def _work(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            reply = self._apps[node](message, self._contexts[node])
            reply = copy.deepcopy(reply)
        except Exception:
            reply = Message(
                Error(code=APP_FAILED), reply_to=message
            )  # its text stays with the node
        return reply
