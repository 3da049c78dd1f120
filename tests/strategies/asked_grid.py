"""A grid that is asked and waited for, and no more: what a round needs of one."""

from __future__ import annotations

from flwr.supercore.task_identity import TaskIdentity


class AskedGrid:
    """Which nodes there are, and what they answer, is for whoever derives from it."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
