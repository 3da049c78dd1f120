"""The adapter is the mean of the last values, also after a resume."""

from __future__ import annotations

import numpy as np
import pytest

from fedpriv.config.load import HOSPITALS, load_job
from fedpriv.privacy.mechanism.privatised import Privatised, public, received
from fedpriv.public_update.config import OptimizerSection
from fedpriv.public_update.update import Aggregate
from fedpriv_strategies.averaged import AveragedUpdate, adapter_of
from fedpriv_strategies.strategy import update_of

START = public(np.zeros(40, dtype=np.float32))


def test_the_adapter_is_the_mean_of_the_values_of_the_last_rounds() -> None:
    made = AveragedUpdate(OptimizerSection(), START, after=2)
    assert np.array_equal(made.adapter.value, START.value)
    kept, values = made.state(), []
    drawn = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    for number, gradient in enumerate(drawn, start=1):
        if number == 4:  # it goes on from what was kept
            made = AveragedUpdate(OptimizerSection(), START, after=2)
            made.restore(kept)
        made.take(number, Aggregate(received(gradient), 1.0, 1000.0), lr=0.1)
        values.append(made.vector.value.astype(np.float64))
        expected = np.mean(values[2:], axis=0) if number > 2 else values[-1]
        assert made.adapter.value == pytest.approx(expected.astype(np.float32), rel=1e-6)
        kept = made.state()
        assert np.array_equal(adapter_of(kept.value), made.adapter.value)
    assert isinstance(made.adapter, Privatised)


@pytest.mark.parametrize(
    ("rounds", "average", "last"),
    [
        (10, 0.0, 0),
        (10, 0.5, 5),
        (10, 0.8, 8),
        (10, 0.9, 9),
        (100, 0.9, 90),
        (3, 0.5, 2),
        (3, 1, 3),
    ],
)
def test_so_many_rounds_are_averaged(rounds: int, average: float, last: int) -> None:
    job = load_job(HOSPITALS, [f"job.rounds={rounds}", f"job.average={average}"])
    made = update_of(job, START, [(40,)])
    for number in range(1, rounds + 1):
        made.take(number, Aggregate(START, 1.0, 1000.0), lr=0.1)
    assert int(made.state().value.get("mean over", 0)) == last
