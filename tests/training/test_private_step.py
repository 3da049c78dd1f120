"""A step whose method fails whole: noise around 0, in either numerics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedpriv.privacy.entropy import SystemEntropy
from fedpriv.privacy.ledger import Plan, Reservation
from fedpriv.training.private_step import private_step


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_a_step_that_fails_whole_releases_the_plans_noise(numerics: Any) -> None:
    plan = Plan("job", "any", 0.5, 1.5, 2.0, 3, "sha256:" + "c" * 64, numerics)
    asked: list[Any] = []

    class Failing:
        def clipped_sum(self, worker: Any, units: Any, *arguments: Any) -> Any:
            asked.extend(arguments)
            raise MemoryError("a very long record was sampled")

    class Population(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.units)

    parameters = np.zeros(5000, dtype=np.float32)
    released: Any = private_step(
        Failing(),
        None,  # type: ignore[arg-type]
        Population(units=[()] * 9),  # type: ignore[arg-type]
        parameters,
        Reservation("ledger", plan, 0, "sha256:" + "0" * 64),
        SystemEntropy(),
    )
    assert asked[1:] == [2.0, numerics]
    assert released.value.dtype == np.float32
    assert 0.9 < released.value.std() / 3.0 < 1.1
