"""A grid of threads: what it holds does not grow with its nodes."""

from __future__ import annotations

import threading
import time
import weakref
from itertools import islice
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedpriv_simulation.inline import FIRST_SITE, InlineGrid
from tests.waiting import CEILING, wait_until

NODES = range(FIRST_SITE, FIRST_SITE + 40)


def asking(grid: InlineGrid) -> list[Message]:
    return [
        Message(RecordDict({"x": ConfigRecord({"n": node})}), node, "train", group_id="1")
        for node in NODES
    ]


def echo(message: Message, context: Context) -> Message:
    return Message(message.content, reply_to=message)


def test_replies_come_in_the_order_of_the_messages() -> None:
    def answer(message: Message, context: Context) -> Message:
        time.sleep(0.002 * (message.metadata.dst_node_id % 3))
        return echo(message, context)

    with InlineGrid(dict.fromkeys(NODES, answer), 4) as grid:
        asked = asking(grid)
        replies = grid.send_and_receive(asked)
        ids = [reply.metadata.reply_to_message_id for reply in replies]
        assert ids == [item.metadata.message_id for item in asked]


def test_a_reply_that_was_taken_is_not_held() -> None:
    arrays: list[Any] = []
    with InlineGrid(dict.fromkeys(NODES, echo), 2) as grid:
        for reply in grid.send_and_receive(asking(grid)):
            assert all(earlier() is None for earlier in arrays)
            reply.content["y"] = record = ArrayRecord()
            arrays.append(weakref.ref(record))
            del reply, record
    assert len(arrays) == len(NODES)


def test_what_nobody_waits_for_is_not_begun() -> None:
    begun: list[int] = []
    go = threading.Event()

    def answer(message: Message, context: Context) -> Message:
        begun.append(message.metadata.dst_node_id)
        go.wait(CEILING)
        return echo(message, context)

    with InlineGrid(dict.fromkeys(NODES, answer), 1) as grid:
        replies = grid.send_and_receive(asking(grid), timeout=0.0)
        wait_until(lambda: begun)
        assert list(replies) == []
        go.set()
        [late] = grid.send_and_receive(asking(grid)[:1])  # the next request is answered
        assert not late.has_error()
    assert begun == [FIRST_SITE, FIRST_SITE]


def test_each_queue_has_threads_of_its_own_and_no_node_has() -> None:
    names: set[str] = set()
    stuck, go = threading.Event(), threading.Event()

    def answer(message: Message, context: Context) -> Message:
        names.add(threading.current_thread().name)
        if message.metadata.dst_node_id % 2:  # one queue's process hangs
            stuck.set()
            go.wait(CEILING)
        return echo(message, context)

    even = [node for node in NODES if node % 2 == 0]
    with InlineGrid(dict.fromkeys(NODES, answer), 2, queue_of=lambda node: node % 2) as grid:
        asked = sorted(asking(grid), key=lambda message: message.metadata.dst_node_id % 2)
        replies = grid.send_and_receive(asked, timeout=CEILING)
        assert stuck.wait(CEILING)
        found = [reply.metadata.src_node_id for reply in islice(replies, len(even))]
        assert found == even
        go.set()
        assert len(list(replies)) == len(NODES) - len(even)
    assert len(names) <= 4
