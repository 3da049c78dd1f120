"""Passes are AdamW along the mean gradient of each batch, at a rate that may fall to nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fedpriv.data import Example
from fedpriv.training.passes import batches, passes
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.worker import Worker

RATE = 3e-2


def records(count: int) -> list[Example]:
    made = [[3 + i % 7, 4, 5, *[3 + j % 5 for j in range(i)]] for i in range(count)]
    return [Example(ids, ids) for ids in made]


@pytest.mark.parametrize("falling", [False, True])
def test_a_pass_is_adamw_along_the_mean_gradient_of_each_batch(
    worker: Worker, falling: bool
) -> None:
    """Against torch's own optimiser, each step's rate set by hand."""
    given, drawn = records(10), random.Random(5)
    expected = torch.nn.Parameter(torch.from_numpy(worker.initial.copy()))
    optimizer = torch.optim.AdamW([expected], lr=RATE, weight_decay=0.0)
    step, after = 0, []
    for _ in range(3):
        order = list(batches(given, 4, drawn))
        assert [len(batch) for batch in order].count(4) == 2
        for batch in order:
            optimizer.param_groups[0]["lr"] = RATE * (9 - step) / 9 if falling else RATE
            slope = mean_gradient(worker, batch, expected.detach().numpy())
            expected.grad = torch.from_numpy(slope)
            optimizer.step()
            step += 1
        after.append(expected.detach().numpy().copy())
    assert step == 9
    made = list(
        passes(worker, worker.initial, given, RATE, epochs=3, batch_size=4, falling=falling, seed=5)
    )
    np.testing.assert_allclose(made, after, rtol=0, atol=1e-6)


def test_they_end_where_a_value_is_no_longer_finite(worker: Worker) -> None:
    made = passes(worker, worker.initial, records(3), 1e30, epochs=4, batch_size=2, falling=False)
    assert len(list(made)) < 4


def test_a_batch_holds_records_of_about_one_length_and_a_pass_all_of_them() -> None:
    given = records(160)
    drawn = random.Random(0)
    first, second = ([*batches(given, 8, drawn)] for _ in range(2))
    for order in (first, second):
        assert sorted(id(record) for batch in order for record in batch) == sorted(map(id, given))
        spread = [max(lengths) - min(lengths) for lengths in map(lengths_of, order)]
        assert max(spread) == 7  # of 160 lengths, eight neighbours
    assert first != second


def lengths_of(batch: list[Example]) -> list[int]:
    return [len(record.input_ids) for record in batch]
