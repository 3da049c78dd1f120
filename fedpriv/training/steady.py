"""Rows of several records at once, each the same bits whatever else is in the sample.

A kernel is chosen by the shape of a batch, and another one rounds otherwise. So a batch always has
the same number of places here, and where a few records are left over, copies of one fill it up.
Whether a record's gradient has the same bits in every place of such a batch, whoever its neighbours
are, is tried on random tokens, once for each length; where it has not, records are computed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedpriv.data.batch import Batch
from fedpriv.gradients.engine import gathered
from fedpriv.training.loss import record_losses
from fedpriv.training.random_batch import random_batch

if TYPE_CHECKING:
    from fedpriv.data.encode import Example
    from fedpriv.training.worker import Worker

PLACES = 4  # nearly as fast as 16 on a CPU, and few to fill up
Rows = Callable[[Batch], Tensor]


class SteadyRows:
    """Rows of records of one padded length, each a function of its record alone, bit for bit.

    Args:
        rows: of a batch (B, R), each made of what `GradientEngine.stream` hands over of its own
            record, by arithmetic that is the same for every place; a tensor of their own.

    Attributes:
        places: of a batch. Where memory for so many runs out, a record has no row: with fewer, it
            would have other bits.

    Privacy:
        What decides how a record is computed is public: the machine, settings, and its own length.
    """

    def __init__(self, worker: Worker, rows: Rows) -> None:
        self._worker, self._rows = worker, rows
        self.places = min(PLACES, worker.fits)

    def __call__(self, examples: Sequence[Example], length: int) -> Tensor:
        """(B, R) of B examples, `places` of them at a time."""
        places = self.places if self._is_steady(length) else 1
        found = []
        for start in range(0, len(examples), places):
            chunk = list(examples[start : start + places])
            filled = chunk + chunk[-1:] * (places - len(chunk))
            found.append(self._rows(self._worker.batch(filled, length))[: len(chunk)])
        return torch.cat(found)

    def _is_steady(self, length: int) -> bool:
        known, key = self._worker.steady, (length, torch.get_num_threads())
        if key not in known:
            known[key] = self.places == 1 or is_steady(self._worker, self.places, length)
        return known[key]


def is_steady(worker: Worker, places: int, length: int) -> bool:
    """Whether a record's gradient has the same bits in every place, whoever its neighbours are.

    Tried at the values before any training, moved a little, because half of a fresh adapter's
    gradients are 0; so the answer is the same whenever it is asked. The model's own are put back.

    Privacy:
        Records have no part in it, nor what a server sends.
    """
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(worker.vector.size, generator=generator) * 0.02
    order = torch.arange(places)
    original = worker.vector.read()
    try:
        worker.vector.write(worker.initial + noise.numpy())
        found = _gradients(worker, order, length)
        if not (bool(torch.isfinite(found).all()) and bool(found.any(1).all())):
            return False
        for moved in range(1, places):
            if not torch.equal(_gradients(worker, order.roll(moved), length), found.roll(moved, 0)):
                return False
        others = _gradients(worker, torch.zeros_like(order), length)  # none of them padded
        return torch.equal(others, found[:1].expand_as(found))
    except RuntimeError:  # no memory for it, for one
        return False
    finally:
        worker.vector.write(original)


def _gradients(worker: Worker, members: Tensor, length: int) -> Tensor:
    """Of a batch of random records; those but the first are padded, each to another length."""
    mask = torch.ones(int(members.max()) + 1, length, dtype=torch.int64)
    for row in range(len(mask)):
        mask[row, max(1, length - row) :] = 0
    made = random_batch(worker, mask, seed=3)
    batch = Batch(made.input_ids[members], made.attention_mask[members], made.labels[members])
    return gathered(worker.gradients, partial(record_losses, batch=batch), len(batch))
