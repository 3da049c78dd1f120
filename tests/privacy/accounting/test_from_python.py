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
            "epsilon: must be above 0 and finite (got -1). Such as epsilon=8.",
        ),
        ({"sample_rate": 2}, "Such as sample_rate=0.05."),
        ({"delta": 0}, "Such as delta=1e-5."),
        ({"epsilon": 1}, "sample_rate, steps, noise_multiplier: too few values. Add any 2"),
        ({"epsilon": 1}, "batch with size stands for sample_rate."),
        ({"batch": 5, "sample_rate": 0.1}, "contradicts batch=5, which says the rate too"),
        ({"batch": 5, "size": 3}, "is more than size=3"),
    ],
)
def test_errors_name_arguments(given: Any, said: str) -> None:
    with pytest.raises(ConfigError) as found:
        plan(**given)
    assert said in str(found.value) and "--" not in str(found.value)
