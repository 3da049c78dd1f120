"""A grid that is asked and waited for, and no more: what a round needs of one."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedpriv_server.one_run import OneRunGrid


class AskedGrid(OneRunGrid):
    """Which nodes there are, and what they answer, is for whoever derives from it."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError
