"""A site's own training: over all its records, as was chosen by them or as is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedpriv.config.personal import OwnTraining
from fedpriv.data.encode import Example
from fedpriv.models.vector import Vector
from fedpriv.personal import training
from fedpriv.personal.training import Epoch, train_alone
from fedpriv.plain_training import passes
from fedpriv.plain_training.public_records import mean_gradient
from fedpriv.private_training.worker import Worker
from tests.own_parts import examples, in_parts

SETTINGS = OwnTraining(rates=(3e-2,), epochs=3, patience=3, batch_size=4)


def passed(worker: Worker, start: Vector, records: list[Example], count: int) -> Vector:
    """After so many passes, as torch's optimiser does (tests/plain_training/test_passes.py)."""
    *_, last = passes.passes(
        worker, start, records, 3e-2, epochs=count, batch_size=4, falling=False, seed=3
    )
    return last


@pytest.mark.slow
def test_what_was_chosen_is_trained_on_all_records(worker: Worker) -> None:
    own = in_parts((5, 4, 3), 3)
    told: list[Epoch] = []
    made = train_alone(worker, worker.initial, own, SETTINGS, seed=3, told=told.append)
    assert made.best.number > 0
    count = made.best.number
    expected = passed(worker, worker.initial, own.everything, count)
    assert np.array_equal(made.values, expected)
    assert made.values.dtype == np.float32
    after = [Epoch(3e-2, number, None) for number in range(1, count + 1)]
    assert told == [*made.epochs, *after]


def test_where_nothing_is_left_out_it_makes_all_passes_at_the_one_rate(
    worker: Worker,
) -> None:
    own = in_parts((7,), 0)
    made = train_alone(worker, worker.initial, own, replace(SETTINGS, epochs=5), seed=3)
    expected = passed(worker, worker.initial, own.everything, 5)
    assert np.array_equal(made.values, expected)
    assert made.best == Epoch(3e-2, 5, None) and not made.epochs


@pytest.mark.slow
def test_another_model_of_the_same_records_is_trained_alike(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = in_parts((5, 4), 2)
    first = train_alone(worker, worker.initial, own, SETTINGS, seed=3)
    monkeypatch.setattr(training, "choose", lambda *_, **__: pytest.fail("chosen again"))
    other = worker.initial + np.float32(0.01)
    made = train_alone(worker, other, own, SETTINGS, seed=3, as_for=first)
    expected = passed(worker, other, own.everything, first.best.number)
    assert np.array_equal(made.values, expected)
    assert made.best == first.best


def test_where_no_pass_helps_it_stays_where_it_began(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Epoch(0.0, 0, 5.0)
    monkeypatch.setattr(training, "choose", lambda *_, **__: (nothing, (nothing,)))
    made = train_alone(worker, worker.initial, in_parts((4, 4), 2), SETTINGS)
    assert np.array_equal(made.values, worker.initial)
    assert made.best == nothing


def test_nothing_is_left_where_a_step_would_find_it(worker: Worker) -> None:
    """Whoever borrows a worker writes values of its own, so a personal model can't travel."""
    made = train_alone(worker, worker.initial, in_parts((8, 4), 2), SETTINGS)
    assert not np.array_equal(made.values, worker.initial)
    records = examples(4, 3)
    first = mean_gradient(worker, records, worker.initial)
    train_alone(worker, worker.initial, in_parts((6, 2), 2), SETTINGS)
    assert np.array_equal(first, mean_gradient(worker, records, worker.initial))
