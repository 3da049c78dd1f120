"""DP-LoRA at a site: the clipped sum of the units' gradients by the adapter's parameters.

With `privacy.normalise`, each adapter's part of a gradient first gets a fixed length.
"""

from __future__ import annotations

from fedpriv.data.store import Units
from fedpriv.gradients.normalise import Normalise
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.unit_sum import sum_of_units
from fedpriv.private_training.worker import Worker


class DpLora:
    """A unit's vector is the mean of its records' gradients, clipped once.

    Args:
        normalise: whether each adapter's part of the mean gets a fixed length before the clip.
    """

    public_records = 0

    def __init__(self, *, normalise: bool = False) -> None:
        self._normalise = normalise

    def held_bytes(self, trained: int) -> int:
        """Return 0: nothing is held."""
        return 0

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Return the length of a release; nothing is computed beforehand."""
        return worker.gradients.size

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
        size, values, of = worker.gradients.size, worker.record_gradients, worker.vector
        vectors = Normalise(of.names, of.shapes, clip_norm) if self._normalise else None
        return sum_of_units(
            worker, units, clip_norm, numerics, size=size, values=values, vectors=vectors
        )
