"""What methods can do at a noise, against planted signals and the figures it was measured by."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv.public_update.edge import noise_edge
from fedpriv.public_update.reach import reach, signal_to_noise
from tests.public_update.test_denoise import cosine, denoise, planted


@pytest.mark.parametrize("shape", [(16, 768), (64, 576), (200, 300)])
def test_a_matrix_is_seen_above_its_critical_cosine_and_not_below(shape: tuple[int, int]) -> None:
    (found,) = reach(1.0, {shape: 1}).matrices
    m, n = shape
    for times, over in ((0.5, False), (2.0, True)):
        cosines, largest = [], []
        for seed in range(20):
            x, signal = planted(shape, [times * (m * n) ** 0.25], seed)
            cosines.append(cosine(x, signal))
            largest.append(np.linalg.norm(x, 2) / noise_edge(m, n))
        # Noise moves a cosine by 1/√(mn), the edge by some parts of m^(−2/3).
        assert np.mean(cosines) == pytest.approx(times * found.cosine, rel=0.1)
        assert (np.mean(largest) > 1.03) == over


@pytest.mark.parametrize("shape", [(2, 256), (16, 384), (64, 64)])
def test_no_cosine_grows_by_more_than_is_told(shape: tuple[int, int]) -> None:
    (found,) = reach(1.0, {shape: 1}).matrices
    gains = []
    for times in (1.2, 1.5, 2.0, 3.0):
        tries = [planted(shape, [times * math.prod(shape) ** 0.25], seed) for seed in range(40)]
        before = np.mean([cosine(x, signal) for x, signal in tries])
        gains.append(np.mean([cosine(denoise(x)[0], signal) for x, signal in tries]) / before)
    assert max(gains) < found.gain


def test_it_tells_what_was_measured() -> None:
    """By the 60 matrices of SmolLM2 at rank 8, and the texts that PE-SGD could use there."""
    found = reach(28.3, {(8, 576): 60})
    assert list(found.needed.values()) == pytest.approx([110, 571, 2826], rel=0.01)
    assert found.texts == 50 and found.matrices[0].gain == pytest.approx(2.8, abs=0.05)


@pytest.mark.parametrize(
    ("sites", "records", "rate", "rounds", "epsilon", "colluding", "expected"),
    [
        (50, 1000, 0.05, 200, 4, 1, 2256),
        (50, 1000, 0.05, 200, 4, None, 322),
        (64, 16, 0.1, 60, 4, 1, 84.6),
        (4, 250, 0.2, 30, 4, None, 65.5),
    ],
)
def test_the_signal_of_all_sites_is_over_the_noise_of_their_sum(
    sites: int, records: int, rate: float, rounds: int, epsilon: float,
    colluding: int | None, expected: float,
) -> None:  # fmt: skip
    sigma = calibrate_noise(epsilon, 1e-5, rate, rounds)
    shares = 1 if colluding is None else shares_of(sites, colluding)
    found = signal_to_noise(rate * sites * records, sigma, sites, shares)
    assert found == pytest.approx(expected, rel=0.01)
