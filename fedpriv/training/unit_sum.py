"""The clipped sum over a sample of units, a microbatch at a time, whatever fails."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from fedpriv.privacy.mechanism.clip import ClippedSum, clip_and_sum, clip_to_grid, zeros
from fedpriv.privacy.mechanism.grid import grid_of
from fedpriv.privacy.usual import Numerics
from fedpriv.training.batch_invariance import Rows, SteadyRows

if TYPE_CHECKING:
    from fedpriv.data.encode import Example
    from fedpriv.training.private_step import Unit
    from fedpriv.training.worker import Worker

Member = TypeVar("Member")
log = logging.getLogger(__name__)
RowsOf = Callable[[Sequence["Example"], int], Tensor]  # of examples of one padded length
Vectors = Callable[[Tensor], Tensor]


def sum_of_units(
    worker: Worker,
    units: Sequence[Unit],
    clip_norm: float,
    numerics: Numerics,
    *,
    size: int,
    rows: Rows,
    vectors: Vectors | None = None,
) -> ClippedSum:
    """Σ over units of clip(v(mean over the unit's records of a row)), (K,).

    Rows are computed a few at a time. Of units that fail together each is done alone, and one that
    fails even so contributes 0.

    What a unit adds is the same whatever else is in the sample. In default numerics its rows are
    the same bits (`SteadyRows`): values can be chosen so that the last bit of a row decides where
    it points, and then one unit would move the parts of others. In strict numerics each record is
    computed alone, padded to a length of its own, and a unit adds integers on the plan's grid.

    Args:
        size: K.
        rows: of a batch of records (B, R), each of its own record alone; see `SteadyRows`.
        vectors: from the units' mean rows (U, R) to their vectors (U, K), each of its own row
            alone; None leaves them as they are.
    """
    grid = grid_of(numerics, clip_norm, size)
    total = zeros(size, grid, worker.device)
    at_once = 1 if grid else worker.at_once  # records
    made: RowsOf = partial(_together, worker, rows) if grid else SteadyRows(worker, rows)
    for held in _by_length(worker, units):
        waiting = deque(chunks(held, at_once))
        while waiting:
            part = waiting.popleft()
            try:
                found = _means(worker, [units[place] for place in part], at_once, made)
                if vectors is not None:
                    found = _one_by_one(vectors, found)
                total += clip_to_grid(found, grid) if grid else clip_and_sum(found, clip_norm)
            except Exception as error:  # whatever fails, the sample stays the same
                if len(part) > 1:
                    waiting.extendleft(reversed(chunks(part, 1)))
                else:
                    _count_failure(worker, error)
    return ClippedSum(total, clip_norm, grid)


def _together(worker: Worker, rows: Rows, examples: Sequence[Example], length: int) -> Tensor:
    return rows(worker.batch(examples, length))


def _one_by_one(vectors: Vectors, means: Tensor) -> Tensor:
    """Each from memory of its own, for what is rounded by how it is aligned."""
    return torch.cat([vectors(mean.clone().unsqueeze(0)) for mean in means])


def _means(worker: Worker, units: Sequence[Unit], at_once: int, rows: RowsOf) -> Tensor:
    """The mean row of each unit, (U, R)."""
    from fedpriv.data.batch import buckets

    examples: list[Example] = [example for unit in units for example in unit]
    owner = [i for i, unit in enumerate(units) for _ in unit]
    share = [1 / len(unit) for unit in units]
    single = len(examples) == len(units)
    groups = buckets(examples, worker.recipe.model.max_length)
    result: Tensor | None = None
    for length, members in groups.items():
        for chunk in chunks(members, at_once):
            found = rows([examples[i] for i in chunk], length)
            if single and len(chunk) == len(examples):
                return found  # one record a unit, one bucket: nothing to average
            if result is None:
                result = found.new_zeros(len(units), found.shape[1])
            # In order, which index_add_ has none of on a GPU.
            for row, index in zip(found, chunk, strict=True):
                result[owner[index]] += row * share[owner[index]]
    assert result is not None
    return result


def _by_length(worker: Worker, units: Sequence[Unit]) -> list[list[int]]:
    """The places of units that hold records, grouped by the padded length of their longest one.

    A unit that has none, as it can't be read or is too long, contributes 0.
    """
    from fedpriv.data.batch import padded_length

    groups: dict[int, list[int]] = {}
    for place in range(len(units)):
        try:
            if unit := units[place]:
                longest = max(len(example.input_ids) for example in unit)
                length = padded_length(longest, worker.recipe.model.max_length)
                groups.setdefault(length, []).append(place)
        except Exception as error:
            _count_failure(worker, error)
    return [groups[length] for length in sorted(groups)]


def _count_failure(worker: Worker, error: Exception) -> None:
    """Note that a unit fails; the log is told once, as each time would tell when it was sampled."""
    kind = type(error).__name__
    if not worker.failures[kind]:
        log.warning("Units fail, and contribute 0: %s", kind)
    worker.failures[kind] += 1


def chunks(members: list[Member], size: int) -> list[list[Member]]:
    """The members, in order, at most `size` together."""
    return [members[i : i + size] for i in range(0, len(members), size)]
