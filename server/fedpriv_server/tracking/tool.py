"""What is asked of a tool that shows how a run goes."""

from __future__ import annotations

from typing import Protocol

from fedpriv_server.tracking.public import Figures


class Tool(Protocol):
    """An opened run of a tool. Whatever it raises ends the telling, never the job."""

    def log(self, step: int, figures: Figures) -> None:
        """Take in a round. After a resume all rounds are told again: what is there stays once.

        Args:
            step: the number of the round; 0 is before the first.
        """
        ...

    def close(self, *, finished: bool) -> None:
        """The job has ended; else it was interrupted, and may go on."""
        ...
