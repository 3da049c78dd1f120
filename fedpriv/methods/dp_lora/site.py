"""DP-LoRA at a site: the clipped sum of the units' gradients by the adapter's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from fedpriv.data.batch import Batch
from fedpriv.gradients.engine import gradients_of
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.training.record_loss import record_losses
from fedpriv.training.unit_sum import Unit, sum_of_units
from fedpriv.training.worker import Worker


class DpLora:
    """A unit's vector is the mean of its records' gradients, clipped once. As `SiteMethod`."""

    public_records = 0

    def held_bytes(self, trained: int) -> int:
        """Nothing is held."""
        return 0

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Nothing is computed beforehand."""
        return worker.gradients.size

    def start(self, parameters: Vector) -> Vector:
        """The parameters themselves."""
        return parameters

    def at(self, parameters: Vector, moved: Vector) -> Vector:
        """They are what is moved."""
        return moved

    def clipped_sum(
        self,
        worker: Worker,
        units: Sequence[Unit],
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Σ over units of clip(mean over the unit's records of ∇ℓ), (P,); see `sum_of_units`."""
        worker.vector.write(parameters)
        return sum_of_units(
            worker,
            units,
            clip_norm,
            numerics,
            size=worker.gradients.size,
            values=partial(gradients, worker),
        )


def gradients(worker: Worker, batch: Batch) -> Tensor:
    """Of each record's own loss, (B, P)."""
    return gradients_of(worker.gradients, partial(record_losses, batch=batch), len(batch))
