"""What the grids share: a Flower grid of one job, which has no Flower run to choose."""

from __future__ import annotations

from typing import NoReturn

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid


class OneRunGrid(Grid):
    """A grid whose nodes all belong to one job."""

    def set_run(self, run: object) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> NoReturn:
        raise NotImplementedError("There is no Flower run to speak of; a job is fedpriv's.")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)
