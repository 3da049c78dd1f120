"""`fedpriv.plan` speaks of arguments."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.from_python import plan
from fedpriv.privacy.accounting.planning import solve


def test_it_solves_as_the_command_does() -> None:
    given: Any = {"epsilon": 4.0, "delta": 1e-5, "steps": 100, "batch": 10, "size": 200}
    assert plan(**given) == solve(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"epsilon": -1},
            "epsilon: must be above 0 and finite (got -1). Such as 8.",
        ),
        ({"sample_rate": 2}, "sample_rate: must be above 0 and at most 1 (got 2). Such as 0.05."),
        ({"delta": 0}, "delta: must be between 0 and 1 (got 0). Such as 1e-5."),
        ({"epsilon": 1}, "sample_rate, steps, noise_multiplier: too few values. Add any 2"),
        ({"epsilon": 1}, "A batch with a size stands for the sample rate."),
        (
            {"batch": 5, "sample_rate": 0.1},
            "sample_rate: contradicts the batch of 5, which says the rate too",
        ),
        ({"batch": 5, "size": 3}, "batch: is more than the size of 3 (got 5)"),
    ],
)
def test_errors_name_arguments(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as found:
        plan(**given)
    assert said in str(found.value) and "--" not in str(found.value)
