"""A site's own training: it stops by records that it does not learn from, and keeps the best."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpriv.config.personal import OwnTraining
from fedpriv.data import Example
from fedpriv.models.vector import Vector
from fedpriv.personal import training
from fedpriv.personal.training import Epoch, train_alone
from fedpriv.training import passes
from fedpriv.training.public_records import mean_gradient
from fedpriv.training.scores import score
from fedpriv.training.worker import Worker


def examples(count: int, seed: int) -> list[Example]:
    drawn = random.Random(seed)
    made = []
    for _ in range(count):
        ids = [3 + (i * i) % 7 for i in range(drawn.randint(6, 20))]
        made.append(Example(ids, ids))
    return made


SETTINGS = OwnTraining(rates=(3e-2,), epochs=4, patience=4, batch_size=4)


def test_it_learns_and_keeps_the_best_pass(worker: Worker) -> None:
    records, validation = examples(12, 0), examples(5, 1)
    told: list[Epoch] = []
    made = train_alone(worker, worker.initial, records, validation, SETTINGS, told=told.append)
    assert tuple(told) == made.epochs
    assert [epoch.number for epoch in told] == [0, 1, 2, 3, 4]
    assert made.best == min(told, key=lambda epoch: epoch.loss)
    assert made.best.loss < told[0].loss - 0.1
    assert score(worker, validation, made.values).eval_loss == made.best.loss
    assert made.values.dtype == np.float32


def test_validation_records_choose_among_passes_at_a_rate_that_stays(worker: Worker) -> None:
    records, validation = examples(10, 2), examples(3, 3)
    made = train_alone(worker, worker.initial, records, validation, SETTINGS, seed=5)
    assert made.best.number > 0
    after = passed(worker, records, epochs=4, falling=False, seed=5)
    assert np.array_equal(made.values, after[made.best.number - 1])


def test_without_validation_records_it_makes_all_passes_and_keeps_the_last(worker: Worker) -> None:
    """At a rate that falls linearly, from the one that is named to nothing after the last batch."""
    settings = replace(SETTINGS, epochs=5, patience=1)
    records, told = examples(7, 0), list[Epoch]()
    made = train_alone(worker, worker.initial, records, [], settings, seed=3, told=told.append)
    assert np.array_equal(made.values, passed(worker, records, epochs=5, falling=True, seed=3)[-1])
    assert [(epoch.number, epoch.loss) for epoch in told] == [(i, None) for i in range(6)]
    assert made.best.number == 5


def passed(
    worker: Worker, records: list[Example], *, epochs: int, falling: bool, seed: int
) -> list[Vector]:
    """After each pass, which tests/training/test_passes.py holds to torch's optimiser."""
    start, rate = worker.initial, 3e-2
    moves = passes.passes(
        worker, start, records, rate, epochs=epochs, batch_size=4, falling=falling, seed=seed
    )
    return list(moves)


@pytest.mark.parametrize("rate", [1e3, 1e30])
def test_a_rate_at_which_numbers_overflow_ends_and_the_next_is_tried(
    worker: Worker, rate: float
) -> None:
    settings = replace(SETTINGS, rates=(rate, 3e-2), patience=2)
    made = train_alone(worker, worker.initial, examples(8, 0), examples(4, 1), settings)
    assert all(epoch.loss is not None and np.isfinite(epoch.loss) for epoch in made.epochs)
    assert made.best.rate == 3e-2


def scripted(monkeypatch: pytest.MonkeyPatch, losses: Sequence[float]) -> None:
    """Validation losses as they are told, in order."""
    found = iter(losses)

    def scores(*_: Any) -> Any:
        return type("Scores", (), {"eval_loss": next(found)})

    monkeypatch.setattr(training, "score", scores)
    monkeypatch.setattr(passes, "mean_gradient", lambda worker, batch, values: 0 * values)


def test_where_no_pass_helps_it_stays_where_it_began(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [5.0, 5.1, 5.2, 4.0])
    settings = replace(SETTINGS, patience=2)
    made = train_alone(worker, worker.initial, examples(8, 0), examples(4, 1), settings)
    assert (made.best.number, made.best.rate) == (0, 0.0)
    assert np.array_equal(made.values, worker.initial)
    assert len(made.epochs) == 1 + 2


def test_patience_counts_passes_without_a_lower_loss(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [5.0, 4.0, 4.5, 3.9, 4.1, 4.2, 9.9])
    settings = replace(SETTINGS, epochs=50, patience=2)
    made = train_alone(worker, worker.initial, examples(2, 0), examples(1, 1), settings)
    assert [epoch.loss for epoch in made.epochs] == [5.0, 4.0, 4.5, 3.9, 4.1, 4.2]
    assert made.best == Epoch(3e-2, 3, 3.9)


def test_each_rate_begins_anew_and_has_patience_of_its_own(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [5.0, 3.0, 3.1, 4.0, 2.5, 2.6])
    settings = replace(SETTINGS, rates=(1e-2, 1e-3), epochs=50, patience=1)
    made = train_alone(worker, worker.initial, examples(2, 0), examples(1, 1), settings)
    assert [(epoch.rate, epoch.number) for epoch in made.epochs[1:]] == [
        (1e-2, 1),
        (1e-2, 2),
        (1e-3, 1),
        (1e-3, 2),
        (1e-3, 3),
    ]
    assert made.best == Epoch(1e-3, 2, 2.5)


def test_a_loss_that_is_no_number_is_no_improvement(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan = float("nan")
    scripted(monkeypatch, [5.0, nan, nan])
    settings = replace(SETTINGS, patience=2)
    made = train_alone(worker, worker.initial, examples(2, 0), examples(1, 1), settings)
    assert made.best.number == 0


def test_nothing_is_left_where_a_step_would_find_it(worker: Worker) -> None:
    """Whoever borrows a worker writes values of its own, so a personal model can't travel."""
    made = train_alone(worker, worker.initial, examples(8, 0), examples(4, 1), SETTINGS)
    assert not np.array_equal(made.values, worker.initial)
    records = examples(4, 3)
    first = mean_gradient(worker, records, worker.initial)
    train_alone(worker, worker.initial, examples(8, 7), examples(4, 1), SETTINGS)
    assert np.array_equal(first, mean_gradient(worker, records, worker.initial))
