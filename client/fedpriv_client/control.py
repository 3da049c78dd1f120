"""What the administrator says to a running site: pause, go on, refuse a job.

Said by a file in the site's folder, so that it holds across restarts and needs no port.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fedpriv.config.job import Wire
from fedpriv.errors import ConfigError, PausedError
from fedpriv.files import write_json
from fedpriv.models.vector import Vector
from fedpriv.protocol import Offer, Proposal, StepReply, StepRequest


@dataclass(frozen=True)
class Orders:
    """What stands. Kept until it is changed.

    Attributes:
        paused: answer no request.
        refused: ids of jobs to which no request is answered any more.
    """

    paused: bool = False
    refused: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Orders:
        """The orders in a site's folder; none is no order.

        Raises:
            ConfigError: the file can't be read. A site does not work on until it can.
        """
        path = folder / "orders.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(bool(found["paused"]), tuple(map(str, found["refused"])))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(
                "can't be read as orders", file=path, fix="Give the order again, or remove it."
            ) from None

    def write(self, folder: Path) -> None:
        """Let these stand from now on."""
        write_json(folder / "orders.json", {"paused": self.paused, "refused": list(self.refused)})

    def check(self, job: str) -> None:
        """Raises:
        PausedError: the administrator wants nothing of this job answered now.
        """
        if self.paused:
            raise PausedError("This site is paused: fedpriv-client resume lets it go on.")
        if job in self.refused:
            raise PausedError(f"The administrator of this site refuses job {job!r}.")


class Answers(Protocol):
    """What answers a server: a site, or something in front of it."""

    @property
    def wire(self) -> Wire:
        """How the vectors of the job in hand travel."""

    def consider(self, proposal: Proposal) -> Offer:
        """Say yes or no to a job."""

    def step(self, request: StepRequest, vector: Vector) -> tuple[StepReply, Vector]:
        """Take one private step."""


class Attended:
    """A site that asks for its administrator's orders before every answer."""

    def __init__(self, site: Answers, folder: Path) -> None:
        self._site, self._folder = site, folder

    @property
    def wire(self) -> Wire:
        return self._site.wire

    def consider(self, proposal: Proposal) -> Offer:
        Orders.read(self._folder).check(proposal.job_id)
        return self._site.consider(proposal)

    def step(self, request: StepRequest, vector: Vector) -> tuple[StepReply, Vector]:
        Orders.read(self._folder).check(request.job_id)
        return self._site.step(request, vector)
