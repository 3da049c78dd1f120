"""A warm start is passes over the set, at a rate that falls to nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpriv.data.encode import Example
from fedpriv.errors import ConfigError
from fedpriv.models.vector import Vector
from fedpriv.plain_training.passes import passes
from fedpriv.plain_training.warm_start import warm_start
from fedpriv.privacy.mechanism.privatised import public
from fedpriv.private_training.worker import Worker


def begun(worker: Worker, records: list[Example | None], passes: int, rate: float) -> Vector:
    settings = SimpleNamespace(warm_start=passes, warm_start_lr=rate)
    public_set: Any = SimpleNamespace(settings=settings, examples=records)
    return warm_start(worker, public_set, public(worker.initial)).value


def test_it_is_passes_that_leave_out_what_predicts_nothing(worker: Worker) -> None:
    records = [
        Example([3 + i % 7, 4, 5, 3 + i % 3], [3 + i % 7, 4, 5, 3 + i % 3]) for i in range(11)
    ]
    *_, last = passes(
        worker, worker.initial, records, 1e-2, epochs=3, batch_size=8, falling=True, seed=0
    )
    made = begun(worker, [None, *records, None], 3, 1e-2)
    assert np.array_equal(made, last)
    assert np.array_equal(begun(worker, [None], 3, 1e-2), worker.initial)


def test_a_rate_at_which_numbers_overflow_is_refused_by_name(worker: Worker) -> None:
    records: list[Example | None] = [Example([3, 4, 5], [3, 4, 5])]
    with pytest.raises(ConfigError, match=r"synthetic\.warm_start_lr: .*Lower it"):
        begun(worker, records, 3, 1e30)
