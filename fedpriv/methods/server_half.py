"""The half of a private training method at the server.

Its half at a site is in `fedpriv.private_training.method`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import Privatised
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import Proposal
from fedpriv.public_update.update import Aggregate
from fedpriv.synthetic.evolution import Evolution, Evolved
from fedpriv.synthetic.records import SetChange


class ServerMethod(Protocol):
    """What a method makes of the sites' releases. It sees privatised and public values only.

    A class of one may have a static method `settings`, which returns what sites have to know of a
    `JobConfig`, as JSON has it, and raises a ConfigError where the method can't be used with it.

    Attributes:
        values: the number of values in a release.
    """

    values: int

    def start(self, parameters: Vector) -> Vector:
        """Start as `SiteMethod.start` does; by default, at the parameters."""
        return parameters

    def change(self, held: str | None) -> SetChange | None:
        """Return what a request says about the public records; None without any.

        Args:
            held: digest of the site's records, if that is known.
        """
        return None

    def gradient(self, mean: Aggregate) -> Aggregate:
        """Return the gradient (P,) that a mean of releases stands for; by default, the mean."""
        return mean

    def advance(self, number: int) -> Evolved | None:
        """Advance the public records after the update of a round. It must not fail any more.

        Returns:
            What became of the public records; None where they stay.
        """
        return None


@dataclass(frozen=True)
class ServerContext:
    """What the server's half of a method may use.

    Attributes:
        trained: P, the number of trained parameters.
        parameters: gives their present values.
        lend: lends a worker for the time of a `with` block.
        public_set: the job's synthetic set, if it has one.
    """

    proposal: Proposal
    trained: int
    parameters: Callable[[], Privatised[Vector]]
    lend: Callable[[], AbstractContextManager[Worker]]
    public_set: Evolution | None
