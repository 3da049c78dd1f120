"""Rows of a few records at a time: the same bits in any company, or else one at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedpriv.data.batch import Batch, padded_length
from fedpriv.data.encode import Example
from fedpriv.gradients.engine import gradients_of
from fedpriv.kept import FOLDER
from fedpriv.private_training import batch_invariance
from fedpriv.private_training.batch_invariance import (
    TRIALS,
    BatchInvariant,
    invariant_sizes,
    try_lengths,
)
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.microbatch import TRIED
from fedpriv.private_training.record_loss import record_losses

LENGTH = 24
MOST = TRIED["cpu"]
Make = Callable[..., Any]
Change = Callable[[Tensor], Tensor]


def records(count: int, label: int | None = None) -> list[Example]:
    drawn = np.random.default_rng(0).integers(3, 250, (count, LENGTH)).tolist()
    return [Example(ids, [-100, *ids[1:]] if label is None else label) for ids in drawn]


def values_of(worker: Any, sizes: list[int]) -> BatchInvariant:
    """Of gradients; notes how many places each batch had."""

    def rows(batch: Batch) -> Tensor:
        sizes.append(len(batch))
        return gradients_of(worker.gradients, partial(record_losses, batch=batch), len(batch))

    return BatchInvariant(worker, rows)


def spoil(worker: Any, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Let gradients be changed by the batch that they are made in."""
    plain = worker.gradients.stream

    def stream(losses: Any, count: int, take: Callable[[int, Tensor], None]) -> None:
        plain(losses, count, lambda start, part: take(start, change(part.clone())))

    monkeypatch.setattr(worker.gradients, "stream", stream)


def a_place_differs(part: Tensor) -> Tensor:
    part[2:3] *= 1 + 2**-20
    return part


def neighbours_are_seen(part: Tensor) -> Tensor:
    return part + 2**-20 * part.amax(0)


def nothing_is_found(part: Tensor) -> Tensor:
    return part * 0.0


def one_is_infinite(part: Tensor) -> Tensor:
    return part + torch.inf


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [None, "8bit", "4bit"])
@pytest.mark.parametrize("dtype", ["float32", "mixed"])
def test_a_row_has_the_same_bits_in_any_company(
    make_worker: Make, dtype: str, quantize: Any
) -> None:
    worker = make_worker("llama", dtype=dtype, microbatch=MOST, quantize=quantize)
    sizes: list[int] = []
    rows, every = values_of(worker, sizes), records(2 * MOST + 1)
    whole = rows(every, LENGTH)
    assert whole.abs().amax(1).min() > 0
    chosen = np.random.default_rng(1)
    for count in range(1, len(every) + 1):
        members = chosen.permutation(len(every))[:count].tolist()
        assert torch.equal(rows([every[i] for i in members], LENGTH), whole[members])
    (found,) = worker.invariant_sizes.values()
    assert set(sizes) <= set(found)
    assert found[0] in (MOST, 1)


@pytest.mark.parametrize(
    "change", [a_place_differs, neighbours_are_seen, nothing_is_found, one_is_infinite]
)
def test_where_it_is_not_certain_records_are_computed_alone(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    worker = make_worker("llama", dtype="float32")
    spoil(worker, monkeypatch, change)
    sizes: list[int] = []
    values_of(worker, sizes)(records(3), LENGTH)
    assert sizes == [1, 1, 1]


def test_where_memory_runs_out_records_are_computed_alone(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker("llama", dtype="float32")
    plain = worker.gradients.stream

    def scarce(losses: Any, count: int, take: Any) -> None:
        if count > 1:
            raise torch.OutOfMemoryError
        plain(losses, count, take)

    monkeypatch.setattr(worker.gradients, "stream", scarce)
    sizes: list[int] = []
    values_of(worker, sizes)(records(2), LENGTH)
    assert sizes == [1, 1]


def test_what_a_server_sends_has_no_part_in_the_trial(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would depend on which lengths had been sampled by then."""
    worker = make_worker("bert", dtype="float32", task="classification")
    seen: list[bytes] = []
    plain = worker.gradients.stream

    def stream(losses: Any, count: int, take: Any) -> None:
        seen.append(worker.vector.read().tobytes())
        plain(losses, count, take)

    monkeypatch.setattr(worker.gradients, "stream", stream)
    answers = []
    for values in (worker.initial, worker.initial * np.float32(1e30), worker.initial * 0):
        worker.vector.write(values)
        answers.append(tuple(invariant_sizes(worker, MOST, LENGTH)))
        assert np.array_equal(worker.vector.read(), values)
    assert len(set(seen)) == len(set(answers)) == 1


def test_padded_and_unpadded_neighbours_are_tried(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention without a mask, where none is needed, would round otherwise."""
    worker = make_worker("llama", dtype="float32")
    padded: list[list[bool]] = []

    def losses(model: Any, batch: Batch) -> Tensor:
        padded.append((batch.attention_mask == 0).any(1).tolist())
        return record_losses(model, batch)

    monkeypatch.setattr("fedpriv.private_training.worker.record_losses", losses)
    assert invariant_sizes(worker, 3, LENGTH) == (3, 1)
    a, b = False, True
    assert padded == [[a, b, b], [b, b, a], [a, a, a], [b, b, b], [b], [b], [a]]


def test_a_length_is_tried_once(make_worker: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = make_worker("llama", dtype="float32")
    values_of(worker, [])(records(1), LENGTH)
    monkeypatch.setattr(batch_invariance, "invariant_sizes", None)  # another trial would call it
    values_of(worker, [])(records(1), LENGTH)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """How many records at once, and the length, of each trial that was made."""
    found: list[tuple[int, int]] = []
    usual = batch_invariance._tried_sizes

    def noted(worker: Any, most: int, length: int) -> Any:
        found.append((most, length))
        return usual(worker, most, length)

    monkeypatch.setattr(batch_invariance, "_tried_sizes", noted)
    return found


@pytest.mark.slow
def test_a_model_is_tried_once_on_a_machine(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tried: list[Any]
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    first, second = (make_worker("llama", dtype="float32") for _ in range(2))
    lengths = list(range(8, first.recipe.model.max_length + 1, 8))
    for worker in (first, first, second):
        try_lengths(worker, 1, 1)
        assert tried == [(MOST, length) for length in lengths]
    assert second.invariant_sizes == first.invariant_sizes
    assert {length for _, length, _ in first.invariant_sizes} == set(lengths)
    try_lengths(make_worker("llama", dtype="float64"), 1, 1)
    assert len(tried) == 2 * len(lengths)  # a trial of another number format says nothing


def test_what_a_step_tries_is_kept_in_memory_alone(
    make_worker: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tried: list[Any]
) -> None:
    """A file would tell which lengths records have, and so would the time of the next start."""
    worker = make_worker("llama", dtype="float32")
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    values_of(worker, [])(records(1), LENGTH)
    assert tried == [(MOST, LENGTH)] and not (tmp_path / "kept").exists()


@settings(max_examples=50)
@given(
    records=st.floats(1e-3, 1e4),
    steps=st.integers(1, 1000),
    longest=st.sampled_from([8, 20, 128, 1024]),
)
def test_trials_cost_no_more_than_three_steps(records: float, steps: int, longest: int) -> None:
    compute = ComputeSection(device="cpu", dtype="float32")
    worker: Any = SimpleNamespace(
        recipe=SimpleNamespace(compute=compute), microbatches={"public": 16}, device="cpu"
    )
    lengths = sorted({padded_length(length, longest) for length in range(1, longest + 1)})
    most = batch_invariance._that_pay(worker, lengths, records, steps)
    assert most in (1, 2, 4) and most <= max(1, records / len(lengths))
    cost, step = TRIALS * most * sum(lengths), records * longest
    assert most == 1 or cost <= min(3 * step, step * steps / 10)
    assert batch_invariance._that_pay(worker, lengths, 1e6, 1000) == 4


def test_where_memory_runs_out_fewer_are_tried_and_nothing_is_kept(
    make_worker: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = make_worker("llama", dtype="float32")
    monkeypatch.setenv(FOLDER, str(tmp_path / "kept"))
    usual = batch_invariance._tried_sizes

    def scarce(worker: Any, most: int, length: int) -> Any:
        if most > 2:
            raise torch.OutOfMemoryError
        return usual(worker, most, length)

    monkeypatch.setattr(batch_invariance, "_tried_sizes", scarce)
    with caplog.at_level(logging.WARNING):
        try_lengths(worker, 1, 1)
    said = [record.message for record in caplog.records]
    assert said == ["OutOfMemoryError with several records at once; at most 2 instead."]
    assert worker.microbatches["private"] == 2
    assert {most for most, _, _ in worker.invariant_sizes} == {2}
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert invariant_sizes(worker, 4, LENGTH) == (1,)


def test_a_small_job_computes_each_record_alone(make_worker: Make, tried: list[Any]) -> None:
    """To try all lengths would take longer than what batches save."""
    worker = make_worker("llama", dtype="float32", microbatch=None)
    try_lengths(worker, 4, 100)
    assert worker.microbatches["private"] == 1 and not tried
    try_lengths(worker, 1e3, 100)
    assert worker.microbatches["private"] == MOST
    longest = worker.recipe.model.max_length
    assert tried == [(MOST, length) for length in range(8, longest + 1, 8)]
    try_lengths(worker, 4, 100)  # of another site, which shares what was found
    assert worker.microbatches["private"] == MOST


def one_alone_differs(part: Tensor) -> Tensor:
    return part * (1 + 2**-20 * (len(part) == 1))


def a_place_of_a_few_differs(part: Tensor) -> Tensor:
    part[-1:] *= 1 + 2**-20 * (len(part) < 4)
    return part


@pytest.mark.parametrize(
    ("change", "count", "expected"),
    [
        (None, 6, [4, 2]),
        (None, 7, [4, 4]),
        (None, 9, [4, 4, 1]),
        (one_alone_differs, 9, [4, 4, 2]),
        (a_place_of_a_few_differs, 9, [4, 4, 4]),
    ],
)
def test_batches_are_of_sizes_that_agree(
    make_worker: Make,
    monkeypatch: pytest.MonkeyPatch,
    change: Change | None,
    count: int,
    expected: list[int],
) -> None:
    worker = make_worker("llama", dtype="float32", microbatch=4)
    if change is not None:
        spoil(worker, monkeypatch, change)
    sizes: list[int] = []
    assert len(values_of(worker, sizes)(records(count), LENGTH)) == count
    assert sizes == expected


def test_a_classifier_is_tried_too(make_worker: Make) -> None:
    worker = make_worker("bert", dtype="float32", task="classification")
    every = records(3, label=1)
    rows = values_of(worker, [])
    assert torch.equal(rows(every, LENGTH)[1:2], rows(every[1:2], LENGTH))
