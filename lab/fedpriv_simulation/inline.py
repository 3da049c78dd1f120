"""A Flower grid in one process: every node is a ClientApp, and threads do the messages' work."""

from __future__ import annotations

import copy
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotReadyError

from flwr.app import Context, Error, Message, RecordDict

from fedpriv_server.flower import messages as flower
from fedpriv_server.flower.messages import APP_FAILED, SERVER_NODE, set_message_id

FIRST_SITE = SERVER_NODE + 1
RUN = 1


def set_identity() -> None:
    """Make this process the server of an inline run, for the messages that it creates."""
    flower.set_identity(RUN, RUN)


def context_of(node: int, state: RecordDict) -> Context:
    """Return the context that Flower hands to a node's app."""
    return Context(run_id=RUN, node_id=node, node_config={}, state=state, run_config={})


class InlineGrid:
    """Run `apps` (node id → ClientApp, or a function that answers like one) on `threads` threads.

    Contents are copied both ways, so that no party can change another's arrays. Use it as a context
    manager. At its end it waits for what is running.

    Args:
        begin: what each of the threads calls first.
        queue_of: node → the queue that it waits in. Each queue has `threads` threads; by default
            there is one queue. So a process that does the work elsewhere always has work, whatever
            the others do, and no thread is needed for each node.
    """

    def __init__(
        self,
        apps: Mapping[int, Callable[[Message, Context], Message]],
        threads: int,
        begin: Callable[[], None] = lambda: None,
        queue_of: Callable[[int], int] = lambda node: 0,
    ) -> None:
        set_identity()
        self._apps = dict(apps)
        self._contexts = {node: context_of(node, RecordDict()) for node in self._apps}
        self._queue_of = queue_of
        self._pools = {
            queue: ThreadPoolExecutor(threads, thread_name_prefix="site", initializer=begin)
            for queue in {queue_of(node) for node in self._apps}
        }

    def __enter__(self) -> InlineGrid:
        return self

    def __exit__(self, *exception: object) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)

    def get_node_ids(self) -> list[int]:
        """Return every node, in order."""
        return list(self._apps)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Send messages, and give the replies in the messages' order, each as soon as it is there.

        Replies that were given are not kept. So a server that adds replies up holds a few at a
        time, however many nodes there are. After `timeout` seconds, or when nobody asks for more,
        results of running work are no longer used, and waiting work is not begun.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        return _in_order(deque(map(self._begin, messages)), deadline)

    def _begin(self, message: Message) -> Future[Message]:
        set_message_id(message, uuid.uuid4().hex)
        pool = self._pools[self._queue_of(message.metadata.dst_node_id)]
        return pool.submit(self._work, copy.deepcopy(message))

    def _work(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        try:
            return copy.deepcopy(self._apps[node](message, self._contexts[node]))
        except Exception:  # the error's text stays with the node
            return Message(Error(code=APP_FAILED), reply_to=message)


def _in_order(futures: deque[Future[Message]], deadline: float | None) -> Iterator[Message]:
    """Give the replies in order until the deadline.

    Work that has not begun by then is cancelled.
    """
    try:
        while futures:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                futures[0].exception(left)
            except NotReadyError:
                futures.popleft().cancel()
            else:
                yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()
