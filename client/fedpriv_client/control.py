"""What the administrator says to a running site: pause, go on, refuse a job.

Said by a file in the site's folder, so that it holds across restarts and needs no port.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fedpriv.errors import ConfigError, JobRefusedError, PausedError
from fedpriv.files import write_json


@dataclass(frozen=True)
class Orders:
    """What stands. Kept until it is changed.

    Attributes:
        paused: compute nothing, for any job.
        refused: jobs to which no request is answered any more, by id, or by the name that the
            coordinator gave them, which an id begins with.
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
            paused, refused = found["paused"], found["refused"]
            if type(paused) is not bool or type(refused) is not list:
                raise TypeError
            return cls(paused, tuple(map(str, refused)))
        except FileNotFoundError:
            return cls()
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(
                "can't be read as orders", file=path, fix="Give the order again, or remove it."
            ) from None

    def write(self, folder: Path) -> None:
        """Let these stand from now on."""
        write_json(folder / "orders.json", {"paused": self.paused, "refused": list(self.refused)})

    def check(self, job: str) -> None:
        """Raises:
        JobRefusedError: the administrator wants no part in this job.
        PausedError: nothing is to be computed now.
        """
        if job in self.refused or job.rpartition("-")[0] in self.refused:
            raise JobRefusedError(f"The administrator of this site refuses job {job!r}.")
        if self.paused:
            raise PausedError("This site is paused: fedpriv-client resume lets it go on.")
