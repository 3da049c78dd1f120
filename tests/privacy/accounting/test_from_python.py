"""`fedpriv.plan` speaks of arguments."""

from __future__ import annotations

from typing import Any

import pytest

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.from_python import plan


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": -1}, "epsilon: is int -1. It should be greater than 0."),
        ({"sample_rate": 2}, "sample_rate: is int 2. It should be less than or equal to 1."),
        ({"delta": 0}, "delta: is int 0. It should be greater than 0."),
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
