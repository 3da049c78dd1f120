"""Compute the clipped sum over a sample of units, a microbatch at a time, whatever fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from fedpriv.data.batch import buckets, padded_length
from fedpriv.data.encode import Example
from fedpriv.data.store import Unit, Units
from fedpriv.privacy.mechanism.clip import ClippedSum, clip_and_sum, clip_to_grid, zeros
from fedpriv.privacy.mechanism.grid import grid_of
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.batch_invariance import BatchInvariant, Values
from fedpriv.private_training.microbatch import private_microbatch
from fedpriv.private_training.worker import Worker

Member = TypeVar("Member")
ValuesOf = Callable[[Sequence[Example], int], Tensor]  # for examples of one padded length
Vectors = Callable[[Tensor], Tensor]
UNIT_FAILED = "Units fail, and contribute 0"


def sum_of_units(
    worker: Worker,
    units: Units,
    clip_norm: float,
    numerics: Numerics,
    *,
    size: int,
    values: Values,
    vectors: Vectors | None = None,
    alone: bool = False,
) -> ClippedSum:
    """Sum over units clip(v(mean of the values of the unit's records)), (K,).

    Values are computed a few records at a time. If units fail together, each is done alone, and one
    that still fails contributes 0.

    What a unit adds is the same whatever else is in the sample. In default numerics its values are
    the same bits (`BatchInvariant`): records can be chosen so that the last bit of a value decides
    where the vector points, and then one unit would move the parts of others. In strict numerics
    each record is computed alone, padded to a length of its own, and a unit adds integers on the
    plan's grid.

    Args:
        size: K.
        values: makes (B, R) of a batch, each row from its own record alone; see `BatchInvariant`.
        vectors: makes the units' vectors (U, K) from their means (U, R), each from its own mean
            alone; None leaves the means as they are.
        alone: compute each record alone in default numerics, too: for values that are not what
            `BatchInvariant` tried.

    Raises:
        NotPrivateError: somebody looks on (`Worker.unobserved`).
    """
    grid = grid_of(numerics, clip_norm, size)
    total = zeros(size, grid, worker.device)
    alone = alone or grid is not None
    together = 1 if alone else private_microbatch(worker)
    values_of: ValuesOf = _alone(worker, values) if alone else BatchInvariant(worker, values)
    with worker.unobserved():
        for group in _by_length(worker, units):
            waiting = deque(chunks(group, together))
            while waiting:
                part = waiting.popleft()
                try:
                    found = _means(worker, [units[place] for place in part], together, values_of)
                    if vectors is not None:
                        found = _one_by_one(vectors, found)
                    total += clip_to_grid(found, grid) if grid else clip_and_sum(found, clip_norm)
                except Exception as error:  # whatever fails, the sample stays the same
                    if len(part) > 1:
                        waiting.extendleft(reversed(chunks(part, 1)))
                    else:
                        worker.went_on_after(error, UNIT_FAILED)
    return ClippedSum(total, clip_norm, grid)


def _alone(worker: Worker, values: Values) -> ValuesOf:
    return lambda examples, length: values(worker.batch(examples, length))


def _one_by_one(vectors: Vectors, means: Tensor) -> Tensor:
    """Compute each from memory of its own, because alignment may change the rounding."""
    return torch.cat([vectors(mean.clone().unsqueeze(0)) for mean in means])


def _means(worker: Worker, units: Sequence[Unit], together: int, values: ValuesOf) -> Tensor:
    """Compute the mean of each unit's records' values, (U, R)."""
    examples: list[Example] = [example for unit in units for example in unit]
    owner = [i for i, unit in enumerate(units) for _ in unit]
    share = [1 / len(unit) for unit in units]
    single = len(examples) == len(units)
    groups = buckets(examples, worker.recipe.model.max_length)
    result: Tensor | None = None
    for length, members in groups.items():
        for chunk in chunks(members, together):
            found = values([examples[i] for i in chunk], length)
            if single and len(chunk) == len(examples):
                return found  # one record a unit, one bucket: nothing to average
            if result is None:
                result = found.new_zeros(len(units), found.shape[1])
            # In order: on a GPU, index_add_ has none.
            for one, index in zip(found, chunk, strict=True):
                result[owner[index]] += one * share[owner[index]]
    assert result is not None
    return result


def _by_length(worker: Worker, units: Units) -> list[list[int]]:
    """Group the places of units that hold records by the padded length of their longest one.

    A unit without records, or one that can't be read or is too long, contributes 0.
    """
    groups: dict[int, list[int]] = {}
    for place in range(len(units)):
        try:
            if unit := units[place]:
                longest = max(len(example.input_ids) for example in unit)
                length = padded_length(longest, worker.recipe.model.max_length)
                groups.setdefault(length, []).append(place)
        except Exception as error:
            worker.went_on_after(error, UNIT_FAILED)
    return [groups[length] for length in sorted(groups)]


def chunks(members: list[Member], size: int) -> list[list[Member]]:
    """Split the members, in order, into chunks of at most `size`."""
    return [members[i : i + size] for i in range(0, len(members), size)]
