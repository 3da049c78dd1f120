"""Rate and passes are chosen by parts that are left out in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpriv.config.personal import OwnTraining
from fedpriv.personal import training as choosing
from fedpriv.personal.training import Epoch, choose
from fedpriv.plain_training import passes
from fedpriv.plain_training.scores import score
from fedpriv.private_training.worker import Worker
from tests.own_parts import in_parts

SETTINGS = OwnTraining(rates=(3e-2,), epochs=3, patience=3, batch_size=4)


def test_a_part_is_scored_by_the_model_that_did_not_see_it(worker: Worker) -> None:
    """The loss of each pass against models that were trained here without each part."""
    own = in_parts((5, 4, 3), 3)
    best, tried = choose(worker, worker.initial, own, SETTINGS, seed=2)
    assert [epoch.number for epoch in tried] == [0, 1, 2, 3]
    for number in (1, 2, 3):
        losses = []
        for index, part in enumerate(own.parts):
            others = [e for i, p in enumerate(own.parts) if i != index for e in p]
            *_, values = passes.passes(
                worker,
                worker.initial,
                others,
                3e-2,
                epochs=number,
                batch_size=4,
                falling=False,
                seed=2,
            )
            losses.append(score(worker, part, values).eval_loss)
        expected = statistics.fmean(losses, weights=[5, 4, 3])
        assert tried[number].loss == pytest.approx(expected, rel=1e-6)
    assert best == min(tried, key=lambda epoch: epoch.loss or np.inf)
    assert best.loss is not None and tried[0].loss is not None
    assert best.loss < tried[0].loss - 0.1


def test_of_many_units_one_part_is_left_out(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = choosing.score

    def watched(worker: Worker, records: Sequence[Any], values: Any) -> Any:
        seen.append(len(records))
        return real(worker, records, values)

    monkeypatch.setattr(choosing, "score", watched)
    choose(worker, worker.initial, in_parts((2, 4, 5), 1), SETTINGS)
    assert set(seen) == {2}


def scripted(monkeypatch: pytest.MonkeyPatch, losses: Sequence[float]) -> None:
    """Losses of the only part, as they are told, in order."""
    found = iter(losses)

    def scores(*_: Any) -> Any:
        return type("Scores", (), {"eval_loss": next(found)})

    monkeypatch.setattr(choosing, "score", scores)
    monkeypatch.setattr(passes, "mean_gradient", lambda worker, batch, values: 0 * values)


def chosen(worker: Worker, settings: OwnTraining) -> tuple[Epoch, list[tuple[float, int]]]:
    best, tried = choose(worker, worker.initial, in_parts((1, 2), 1), settings)
    return best, [(epoch.rate, epoch.number) for epoch in tried[1:]]


def test_where_no_pass_helps_none_is_made(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [5.0, 5.1, 5.2, 5.0])
    best, tried = chosen(worker, replace(SETTINGS, patience=2))
    assert best == Epoch(0.0, 0, 5.0)
    assert best.said == "not trained"
    assert len(tried) == 2


def test_patience_counts_passes_without_a_lower_loss(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [5.0, 4.0, 4.5, 3.9, 4.1, 4.2, 0.1])
    best, tried = chosen(worker, replace(SETTINGS, epochs=50, patience=2))
    assert best == Epoch(3e-2, 3, 3.9)
    assert best.said == "0.03 × 3"
    assert len(tried) == 5


def test_rates_are_tried_from_the_highest_until_a_lower_one_is_no_better(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, rates=(1e-4, 1e-2, 1e-1, 1e-3), epochs=50, patience=1)
    scripted(monkeypatch, [5.0, 4.0, 4.5, 3.5, 3.6, 5.5, 0.1, 0.1])
    best, tried = chosen(worker, settings)
    assert tried == [(1e-1, 1), (1e-1, 2), (1e-2, 1), (1e-2, 2), (1e-3, 1)]
    assert best == Epoch(1e-2, 1, 3.5)


def test_a_rate_that_helps_nothing_ends_no_search(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, [5.0, float("nan"), 6.0, 4.0, 4.5])
    best, _ = chosen(worker, replace(SETTINGS, rates=(1.0, 1e-1, 1e-2), epochs=2, patience=1))
    assert best == Epoch(1e-2, 1, 4.0)


@pytest.mark.parametrize("rate", [1e3, 1e30])
def test_a_rate_at_which_numbers_overflow_ends_and_the_next_is_tried(
    worker: Worker, rate: float
) -> None:
    settings = replace(SETTINGS, rates=(rate, 3e-2), patience=2)
    best, tried = choose(worker, worker.initial, in_parts((8, 4), 2), settings)
    assert all(epoch.loss is not None and np.isfinite(epoch.loss) for epoch in tried)
    assert best.rate == 3e-2
