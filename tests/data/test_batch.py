"""Padding depends on a row and public settings alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.data.batch import buckets, collate, padded_length
from fedpriv.data.encode import Example

LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=8)


def sequence(length: int) -> Example:
    ids = list(range(1, length + 1))
    return Example(ids, [-100, *ids[1:]])


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(2, 5000))
def test_padded_length_is_monotone_and_sufficient(a: int, b: int, max_length: int) -> None:
    shorter, longer = sorted((min(a, max_length), min(b, max_length)))
    padded = padded_length(shorter, max_length)
    assert shorter <= padded <= padded_length(longer, max_length) <= max_length
    assert padded % 8 == 0 or padded == max_length
    assert padded - shorter < max(8, shorter / 8)


@pytest.mark.parametrize("length", [0, -1, 65])
def test_a_length_out_of_range_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"length={length}"):
        padded_length(length, 64)


@given(LENGTHS)
def test_buckets_hold_every_example_once(lengths: list[int]) -> None:
    examples = [sequence(length) for length in lengths]
    grouped = buckets(examples, 100)
    assert sorted(index for indices in grouped.values() for index in indices) == list(
        range(len(lengths))
    )
    assert list(grouped) == sorted(grouped)
    for padded, indices in grouped.items():
        assert indices == sorted(indices)
        assert all(padded_length(lengths[index], 100) == padded for index in indices)


@given(LENGTHS, st.sampled_from(["left", "right"]), st.integers(0, 9))
def test_a_row_is_its_tokens_and_padding(lengths: list[int], side: str, pad: int) -> None:
    examples = [sequence(length) for length in lengths]
    batch = collate(examples, pad, 100, "left" if side == "left" else "right")
    assert len(batch) == len(lengths)
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.labels.shape
    for row, example in enumerate(examples):
        there = batch.attention_mask[row].bool()
        assert batch.input_ids[row][there].tolist() == example.input_ids
        assert batch.labels[row][there].tolist() == example.labels
        assert (batch.input_ids[row][~there] == pad).all()
        assert (batch.labels[row][~there] == -100).all()
        assert there[-1 if side == "left" else 0]
        alone = collate([example], pad, 100, "left" if side == "left" else "right")
        assert torch.equal(alone.input_ids[0], batch.input_ids[row])


def test_class_labels_are_one_per_row() -> None:
    batch = collate([Example([1, 2], 1), Example([3], 0)], 0, 4)
    assert batch.labels.tolist() == [1, 0]
    assert batch.input_ids.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert batch.labels.dtype == batch.input_ids.dtype == torch.int64


def test_a_batch_moves_whole() -> None:
    batch = collate([sequence(3)], 0, 4).to("meta")
    devices = {batch.input_ids.device, batch.attention_mask.device, batch.labels.device}
    assert devices == {torch.device("meta")}


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="length=2"):
        collate([sequence(3)], 0, 2)
