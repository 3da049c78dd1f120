"""DP-LoRA: the clipped sum of the units' gradients by the adapter's parameters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.gradients.clip import ClippedSum, clip_and_sum, clip_to_grid, zeros
from fedpriv.privacy.grid import Numerics, grid_of
from fedpriv.training.loss import record_losses

if TYPE_CHECKING:
    from fedpriv.data.encode import Example
    from fedpriv.models.vector import Vector
    from fedpriv.training.private_step import Unit
    from fedpriv.training.worker import Worker

log = logging.getLogger(__name__)


class DpLora:
    """A unit's vector is the mean of its records' gradients, clipped once."""

    def clipped_sum(
        self,
        worker: Worker,
        units: Sequence[Unit],
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Σ over units of clip(mean over the unit's records of ∇ℓ), (P,) in float64.

        Rows are computed a microbatch at a time. When memory runs out the microbatch is halved
        and the same units are done again; a unit that fails even alone contributes 0.

        In strict numerics the microbatch is one record, padded to a length of its own, and the
        sum is one of integers on the plan's grid: whatever else is in the sample, a unit adds
        the same integers.
        """
        worker.vector.write(parameters)
        gradients = worker.gradients
        grid = grid_of(numerics, clip_norm, gradients.size)
        total = zeros(gradients.size, grid, worker.device)
        size = 1 if grid else worker.recipe.compute.microbatch
        for held in _by_length(units, worker.recipe.model.max_length):
            start = 0
            while start < len(held):
                part = held[start : start + size]
                try:
                    rows = self._unit_rows(worker, part, size)
                    total += clip_to_grid(rows, grid) if grid else clip_and_sum(rows, clip_norm)
                except Exception as error:  # whatever fails, the sample stays the same
                    if len(part) > 1:
                        size = max(1, len(part) // 2)
                        continue
                    worker.failures[type(error).__name__] += 1
                    log.warning("A unit failed and contributes 0: %s", type(error).__name__)
                start += len(part)
        return ClippedSum(gradients.natural(total), clip_norm, grid)

    def _unit_rows(self, worker: Worker, units: Sequence[Unit], size: int) -> Tensor:
        """The mean gradient of each unit, (U, P), in the engine's order."""
        from fedpriv.data.batch import buckets

        examples: list[Example] = [example for unit in units for example in unit]
        owner = torch.tensor([i for i, unit in enumerate(units) for _ in unit])
        share = torch.tensor([1 / len(unit) for unit in units], dtype=torch.float64)
        single = len(examples) == len(units)
        groups = buckets(examples, worker.recipe.model.max_length)
        result: Tensor | None = None
        for length, members in groups.items():
            for chunk in _chunks(members, size):
                batch = worker.batch([examples[i] for i in chunk], length)
                rows = worker.gradients.rows(partial(record_losses, batch=batch), len(chunk))
                if single and len(chunk) == len(examples):
                    return rows  # one record a unit, one bucket: nothing to average
                if result is None:
                    result = rows.new_zeros(len(units), rows.shape[1])
                owners = owner[chunk].to(rows.device)
                result.index_add_(0, owners, rows * share.to(rows)[owners].unsqueeze(1))
        assert result is not None
        return result


def _by_length(units: Sequence[Unit], max_length: int) -> list[list[Unit]]:
    """Units that hold records, grouped by the padded length of their longest one."""
    from fedpriv.data.batch import padded_length

    groups: dict[int, list[Unit]] = {}
    for unit in units:
        if unit:
            longest = max(len(example.input_ids) for example in unit)
            groups.setdefault(padded_length(longest, max_length), []).append(unit)
    return [groups[length] for length in sorted(groups)]


def _chunks(members: list[int], size: int) -> list[list[int]]:
    return [members[i : i + size] for i in range(0, len(members), size)]
