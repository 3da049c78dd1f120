"""Define a private training method: a half at each site, and a half at the server.

A method is one folder, such as `fedpriv.methods.dp_lora`, and one entry point of the group
``fedpriv.methods`` that names its `Method`; `fedpriv.methods.registry` finds it. Any package may
bring one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fedpriv.data.encode import Example
from fedpriv.data.store import Units
from fedpriv.errors import ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.plugins import load_part
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import Proposal

# An example for each record; None for a record without a token to predict.
Records = tuple[Example | None, ...]


class UnitSum(Protocol):
    """The computation of a step over the sampled units."""

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Compute what needs no private records, before anything is paid.

        Returns:
            How many values a release has.

        Raises:
            FedprivError: it can't be computed; the site refuses, and has spent nothing.
        """

    def clipped_sum(
        self, worker: Worker, units: Units, parameters: Vector, clip_norm: float, numerics: Numerics
    ) -> ClippedSum:
        """Sum over the units a vector of norm at most `clip_norm` each.

        It must not raise for what a unit holds: a unit that fails contributes 0. In strict numerics
        a unit's vector is computed alone, and the sum is on the grid of `grid_of`.
        """


class SiteMethod(UnitSum, Protocol):
    """The half of a method at a site, for one job.

    Attributes:
        public_records: how many public records a site holds besides the vector; 0 if none are
            needed.
    """

    public_records: int

    def held_bytes(self, trained: int) -> int:
        """Return the bytes a site must hold for public records, with `trained` parameters.

        Raises:
            ProtocolError: such records are of no use for that model.
        """

    def start(self, parameters: Vector) -> Vector:
        """Return the values that local steps' optimiser starts from; as many as a release has."""

    def at(self, parameters: Vector, moved: Vector) -> Vector:
        """Return the trained vector that a moved start stands for."""


class Method(Protocol):
    """A method, as its package names it. It holds nothing, so that it can be sent to a process.

    Its half at the server has an entry point of its own, in ``fedpriv.server_halves``: a site loads
    none of it.

    A method that follows `privacy.normalise` has an attribute `normalises` that is true.
    """

    @property
    def needs_set(self) -> bool:
        """Whether sites need the records of the job's synthetic set."""

    def at_site(self, proposal: Proposal, records: Records = ()) -> SiteMethod:
        """Make the site's half, for a job that a server proposed.

        Args:
            records: the public records; empty before there are any.

        Raises:
            ProtocolError: the proposal can't be meant for this method.
        """


@dataclass(frozen=True)
class SiteHalf:
    """Hold the parts from which any process makes the site's half of a job's method.

    Attributes:
        records: the public records that the half holds.
    """

    method: Method
    proposal: Proposal
    records: Records = ()

    def make(self) -> SiteMethod:
        """Make the half.

        Raises:
            ProtocolError: see `Method.at_site`; or the method does not know `privacy.normalise`.
        """
        if self.proposal.privacy.normalise is not None and not normalises(self.method):
            raise ProtocolError(f"privacy.normalise: is not for method {self.proposal.method}.")
        return self.method.at_site(self.proposal, self.records)

    def at(self, worker: Worker) -> SiteMethod:
        """Make the half as a worker computes it: with the processes that share its steps, if any.

        Raises:
            ConfigError: there are fewer devices than ``compute.devices``.
        """
        if worker.recipe.compute.devices == 1:
            return self.make()
        shared: SiteMethod = load_part("compute.devices")(worker, self)
        return shared


def normalises(method: Method) -> bool:
    """Tell whether the method follows `privacy.normalise`."""
    return bool(getattr(method, "normalises", False))
