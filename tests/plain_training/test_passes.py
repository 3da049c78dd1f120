"""Passes over records in batches by AdamW: each sees all of them once, and pads little."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.encode import Example
from fedpriv.plain_training.passes import batches, passes
from fedpriv.plain_training.public_records import mean_gradient
from fedpriv.private_training.worker import Worker

RATE = 3e-2


@given(st.integers(1, 200), st.integers(1, 12), st.integers(0, 9))
def test_a_pass_sees_every_record_once(count: int, size: int, seed: int) -> None:
    records = [Example([i] * (1 + i % 17), 0) for i in range(count)]
    found = list(batches(records, size, random.Random(seed)))
    assert sorted(e.input_ids[0] for batch in found for e in batch) == list(range(count))
    assert all(len(batch) <= size for batch in found)
    assert len(found) == -(-count // size)


def test_records_of_a_batch_are_about_equally_long() -> None:
    drawn = random.Random(0)
    records = [Example([0] * drawn.randint(1, 100), 0) for _ in range(400)]
    spreads = [
        max(lengths) - min(lengths)
        for batch in batches(records, 8, drawn)
        for lengths in [[len(example.input_ids) for example in batch]]
    ]
    assert sum(spreads) / len(spreads) < 15  # of random batches, about 78


@pytest.mark.parametrize("falling", [False, True])
def test_a_pass_is_adamw_along_the_mean_gradient_of_each_batch(
    worker: Worker, falling: bool
) -> None:
    """Against torch's own optimiser, each step's rate set by hand; where it stays, their mean."""
    records, drawn = [example(4 + i) for i in range(10)], random.Random(5)
    expected = torch.nn.Parameter(torch.from_numpy(worker.initial.copy()))
    optimizer = torch.optim.AdamW([expected], lr=RATE, weight_decay=0.0)
    step, after, steps = 0, [], list[np.ndarray]()
    for _ in range(3):
        order = list(batches(records, 4, drawn))
        assert [len(batch) for batch in order].count(4) == 2
        for batch in order:
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / 9 if falling else 1.0)
            slope = mean_gradient(worker, batch, expected.detach().numpy())
            expected.grad = torch.from_numpy(slope)
            optimizer.step()
            step += 1
            steps.append(expected.detach().numpy().astype(np.float64))
        after.append(steps[-1] if falling else weighted_mean(steps))
    assert step == 9
    made = list(
        passes(
            worker, worker.initial, records, RATE, epochs=3, batch_size=4, falling=falling, seed=5
        )
    )
    roundings = 0 if falling else step * np.finfo(np.float32).eps
    np.testing.assert_allclose(made, after, rtol=0, atol=roundings * np.abs(after).max())


def weighted_mean(steps: list[np.ndarray]) -> np.ndarray:
    """Of step t the weight is that of its place, (t+1)(t+2)(t+3): η = 3, from the recursion."""
    weights = [(t + 1) * (t + 2) * (t + 3) for t in range(len(steps))]
    return np.average(steps, axis=0, weights=weights)


def test_what_comes_later_changes_no_earlier_pass(worker: Worker) -> None:
    """So a number of passes that was chosen among many is the same when it is made."""
    records = [example(4 + i) for i in range(5)]
    few, many = (
        list(passes(worker, worker.initial, records, RATE, epochs=n, batch_size=4, falling=False))
        for n in (2, 4)
    )
    np.testing.assert_array_equal(few, many[:2])


def test_they_end_where_a_value_is_no_longer_finite(worker: Worker) -> None:
    records = [example(4 + i) for i in range(3)]
    made = passes(worker, worker.initial, records, 1e30, epochs=4, batch_size=2, falling=False)
    assert len(list(made)) < 4


def example(length: int) -> Example:
    ids = [3 + i * i % 7 for i in range(length)]
    return Example(ids, ids)
