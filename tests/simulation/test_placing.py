"""What each process of a simulation gets of a machine's GPUs."""

from __future__ import annotations

import pytest

from fedpriv.errors import ConfigError
from fedpriv.private_training.config import ComputeSection
from fedpriv_simulation.workers import gpus_of_a_host


@pytest.mark.parametrize(
    ("device", "there", "count", "given_share", "expected"),
    [
        ("auto", 0, 2, None, 0.0),
        ("cpu", 4, 2, None, 0.0),
        ("auto", 4, 2, None, 2.0),
        ("auto", 4, 3, None, 1.0),
        ("auto", 1, 4, None, 0.25),
        ("auto", 2, 3, None, 0.5),  # a share is of one GPU
        ("cuda", 2, 4, 0.5, 0.5),
    ],
)
def test_gpus_are_shared(
    device: str, there: int, count: int, given_share: float | None, expected: float
) -> None:
    compute = ComputeSection(device=device, gpus_per_site=given_share)
    assert gpus_of_a_host(compute, there, count) == expected


def test_more_gpus_than_there_are_are_refused() -> None:
    for share, count in ((1.0, 4), (0.4, 5)):
        compute = ComputeSection(gpus_per_site=share)
        with pytest.raises(ConfigError, match=r"gpus_per_site.*Lower it"):
            gpus_of_a_host(compute, 2, count)
