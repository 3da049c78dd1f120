"""DP-LoRA at a site: the clipped sum of the units' gradients by the adapter's parameters.

In a job with a controller they are scaled and clipped group by group before (`GroupScaling`).
"""

from __future__ import annotations

from fedpriv.config.groups import Decision, GroupTerms
from fedpriv.errors import ProtocolError
from fedpriv.gradients.groups import Groups, GroupScaling
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.unit_sum import Units, sum_of_units
from fedpriv.private_training.worker import Worker


class DpLora:
    """A unit's vector is the mean of its records' gradients, clipped once. See `GroupedMethod`.

    Args:
        terms: the terms of the groups, in a job with a controller.
        decision: that controller's decision, for one request.
    """

    public_records = 0

    def __init__(self, terms: GroupTerms | None = None, decision: Decision | None = None) -> None:
        self._terms, self._decision = terms, decision

    def in_groups(self, decision: Decision) -> DpLora:
        """See `GroupedMethod`."""
        if self._terms is None:
            raise ProtocolError("decision: the job has no groups to decide about.")
        return DpLora(self._terms, decision)

    def held_bytes(self, trained: int) -> int:
        """Return 0: nothing is held."""
        return 0

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Return the length of a release; nothing is computed beforehand."""
        return worker.gradients.size + (0 if self._terms is None else self._terms.extra)

    def start(self, parameters: Vector) -> Vector:
        """Return the parameters themselves."""
        return parameters

    def at(self, parameters: Vector, moved: Vector) -> Vector:
        """Return what is moved: the parameters."""
        return moved

    def clipped_sum(
        self,
        worker: Worker,
        units: Units,
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Sum over units clip(mean over the unit's records of ∇ℓ), (P,); see `sum_of_units`."""
        worker.vector.write(parameters)
        size, values, vectors = worker.gradients.size, worker.record_gradients, None
        if self._terms is not None and self._decision is not None:
            groups = Groups.of(worker.vector.names, worker.vector.shapes, self._terms.by)
            scaling = GroupScaling(groups, self._terms, self._decision, clip_norm)
            size, vectors = size + scaling.extra, scaling.vectors
        return sum_of_units(
            worker, units, clip_norm, numerics, size=size, values=values, vectors=vectors
        )
