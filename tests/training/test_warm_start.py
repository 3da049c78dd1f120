"""A warm start is AdamW along the set's batches, at a rate that falls to nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.data import Example
from fedpriv.errors import ConfigError
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.training.passes import batches
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.warm_start import BATCH, warm_start
from fedpriv.training.worker import Worker


def begun(worker: Worker, records: list[Example | None], passes: int, rate: float) -> Vector:
    settings = SimpleNamespace(warm_start=passes, warm_start_lr=rate)
    public_set: Any = SimpleNamespace(settings=settings, examples=records)
    return warm_start(worker, public_set, public(worker.initial)).value


def test_it_is_adamw_and_leaves_out_what_predicts_nothing(worker: Worker) -> None:
    records = [
        Example([3 + i % 7, 4, 5, 3 + i % 3], [3 + i % 7, 4, 5, 3 + i % 3]) for i in range(11)
    ]
    expected = torch.nn.Parameter(torch.from_numpy(worker.initial.copy()))
    optimizer, drawn = torch.optim.AdamW([expected], lr=1e-2, weight_decay=0.0), random.Random(0)
    order = [batch for _ in range(3) for batch in batches(records, BATCH, drawn)]
    assert len(order) == 6
    for step, batch in enumerate(order):
        optimizer.param_groups[0]["lr"] = 1e-2 * (6 - step) / 6
        slope = mean_gradient(worker, batch, expected.detach().numpy())
        expected.grad = torch.from_numpy(slope)
        optimizer.step()
    made = begun(worker, [None, *records, None], 3, 1e-2)
    np.testing.assert_allclose(made, expected.detach().numpy(), rtol=0, atol=1e-6)
    assert np.array_equal(begun(worker, [None], 3, 1e-2), worker.initial)


def test_a_rate_at_which_numbers_overflow_is_refused_by_name(worker: Worker) -> None:
    records: list[Example | None] = [Example([3, 4, 5], [3, 4, 5])]
    with pytest.raises(ConfigError, match=r"synthetic\.warm_start_lr: .*Lower it"):
        begun(worker, records, 3, 1e30)
