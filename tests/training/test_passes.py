"""Passes over records in batches: each sees all of them once, and pads little."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data import Example
from fedpriv.training.passes import batches


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
