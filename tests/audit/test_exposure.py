"""Exposure of secrets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedpriv_audit.exposure import by_chance, expected_by_chance, exposure


def test_exposure_of_a_secret() -> None:
    assert exposure(np.arange(64)[::-1].astype(float)) == 6.0  # first of 64
    assert exposure(np.arange(64).astype(float)) == 0.0  # last
    assert exposure(np.zeros(3)) == pytest.approx(np.log2(3 / 2))  # ties half


def test_what_comes_by_chance_is_counted_out() -> None:
    """All ranks of three secrets among four, each as likely as the others."""
    means = [
        np.log2(4 / np.array(ranks)).mean() for ranks in itertools.product(range(1, 5), repeat=3)
    ]
    assert expected_by_chance(4) == pytest.approx(np.mean(means))
    for mean in (0.5, 1.0, 2.0):
        share = np.mean(np.array(means) >= mean - 1e-9)
        assert by_chance(mean, 3, 4) == pytest.approx(share, abs=0.006)
