"""The nodes of one job, at a server to which sites of other jobs are connected, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from flwr.app import Message

from fedpriv_server.door import Door
from fedpriv_server.grid import NetworkGrid


class JobGrid:
    """Knows the nodes of a job's own sites, and no others.

    Args:
        members: names of the job's sites.
    """

    def __init__(self, grid: NetworkGrid, door: Door, members: Set[str]) -> None:
        self._grid, self._door, self._members = grid, door, members

    @property
    def names(self) -> dict[int, str]:
        """Node → name of its site, of those admitted."""
        known = self._door.broker.names
        return {node: name for node, name in known.items() if name in self._members}

    def get_node_ids(self) -> list[int]:
        """Return the nodes that are there now, in order of their sites' names."""
        names = self.names
        return [node for node in self._grid.get_node_ids() if node in names]

    def newcomers(self) -> set[int]:
        """Return the nodes that connected since the last call, for the first time or anew."""
        return self._grid.newcomers()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> Iterator[Message]:
        """Send to these and receive from them, as the grid of all does."""
        return self._grid.send_and_receive(messages, timeout=timeout)
