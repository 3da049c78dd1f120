"""DP-LoRA: the clipped sum of the units' gradients by the adapter's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from fedpriv.gradients.engine import gathered
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.training.record_loss import record_losses
from fedpriv.training.unit_sum import sum_of_units

if TYPE_CHECKING:
    from fedpriv.data.batch import Batch
    from fedpriv.models.vector import Vector
    from fedpriv.training.private_step import Unit
    from fedpriv.training.worker import Worker


class DpLora:
    """A unit's vector is the mean of its records' gradients, clipped once."""

    projects: ClassVar[bool] = False

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
        gradients = worker.gradients

        def rows(batch: Batch) -> Tensor:
            return gathered(gradients, partial(record_losses, batch=batch), len(batch))

        total = sum_of_units(worker, units, clip_norm, numerics, size=gradients.size, rows=rows)
        return ClippedSum(gradients.natural(total.value), clip_norm, total.grid)
