from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism import sampling
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, RandomSource, SystemCsprng
from fedpriv.privacy.mechanism.sampling import poisson_sample

Sampler = Callable[[int, float, RandomSource], npt.NDArray[np.int64]]
POPULATION, RATE, ROUNDS = 40, 0.2, 20_000
ALPHA = 1e-6


def fixed_size(population: int, sample_rate: float, source: RandomSource) -> npt.NDArray[np.int64]:
    """A random batch of exactly q·n."""
    order = np.argsort(source.uint64(population))
    return np.sort(order[: round(population * sample_rate)])


class Shuffled:
    """Epochs over a permutation, in batches of q·n."""

    def __init__(self) -> None:
        self.queue: list[int] = []

    def __call__(
        self, population: int, sample_rate: float, source: RandomSource
    ) -> npt.NDArray[np.int64]:
        size = round(population * sample_rate)
        if len(self.queue) < size:
            self.queue = np.argsort(source.uint64(population)).tolist()
        batch, self.queue = self.queue[:size], self.queue[size:]
        return np.sort(np.array(batch))


def too_often(population: int, sample_rate: float, source: RandomSource) -> npt.NDArray[np.int64]:
    return poisson_sample(population, 1.05 * sample_rate, source)


def all_or_nothing(
    population: int, sample_rate: float, source: RandomSource
) -> npt.NDArray[np.int64]:
    """The right rate for each unit, but neighbours come together."""
    first = 2 * poisson_sample(population // 2, sample_rate, source)
    return np.sort(np.concatenate([first, first + 1]))


def rounds(sampler: Sampler, source: RandomSource) -> npt.NDArray[np.float64]:
    taken = np.zeros((ROUNDS, POPULATION))
    for row in taken:
        row[sampler(POPULATION, RATE, source)] = 1
    return taken


def is_poisson(taken: npt.NDArray[np.float64]) -> bool:
    """Rate of each unit, independence of each pair, and the spread of the batch sizes."""
    n, units = taken.shape
    z = (taken - RATE) / np.sqrt(RATE * (1 - RATE))
    rate = (z.sum(axis=0) ** 2 / n).sum()
    pairs = (z.T @ z)[np.triu_indices(units, 1)]
    pair = (pairs**2 / n).sum()
    lag = (z[1:] * z[:-1]).sum() ** 2 / (n - 1) / units  # a unit now and a round later
    sizes = taken.sum(axis=1)
    observed = np.bincount(sizes.astype(int), minlength=units + 1)
    expected = n * binom.pmf(np.arange(units + 1), units, RATE)
    common = expected > 20
    spread = ((observed - expected)[common] ** 2 / expected[common]).sum()
    return bool(
        rate < chi2.isf(ALPHA, units)
        and pair < chi2.isf(ALPHA, pairs.size)
        and lag < chi2.isf(ALPHA, 1)
        and spread < chi2.isf(ALPHA, common.sum())
    )


def test_units_are_in_independently_at_the_rate() -> None:
    assert is_poisson(rounds(poisson_sample, InsecureRandomness(0)))


@pytest.mark.parametrize("wrong", [fixed_size, Shuffled(), too_often, all_or_nothing])
def test_the_test_rejects_other_samplers(wrong: Sampler) -> None:
    assert not is_poisson(rounds(wrong, InsecureRandomness(0)))


def test_batch_size_varies_as_a_binomial() -> None:
    n, q, repeats = 10_000, 0.05, 400
    source = SystemCsprng()
    sizes = np.array([len(poisson_sample(n, q, source)) for _ in range(repeats)])
    deviations = ((sizes - n * q) ** 2).sum() / (n * q * (1 - q))
    assert chi2.isf(1 - 1e-9, repeats) < deviations < chi2.isf(1e-9, repeats)


@given(population=st.integers(0, 300), rate=st.floats(1e-3, 1), seed=st.integers())
def test_indices_are_sorted_distinct_and_in_range(population: int, rate: float, seed: int) -> None:
    chosen = poisson_sample(population, rate, InsecureRandomness(seed))
    assert chosen.dtype == np.int64
    assert (np.diff(chosen) > 0).all()
    assert chosen.size == 0 or 0 <= chosen[0] <= chosen[-1] < population


def test_rate_one_takes_everyone() -> None:
    np.testing.assert_array_equal(poisson_sample(5, 1.0, SystemCsprng()), np.arange(5))


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_nobody_to_take(rate: float) -> None:
    assert poisson_sample(0, rate, SystemCsprng()).shape == (0,)


class Words:
    """Given words, to look at the comparison itself."""

    is_secure = False

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def uint64(self, n: int) -> npt.NDArray[np.uint64]:
        taken, self.words = self.words[:n], self.words[n:]
        return np.array(taken, dtype=np.uint64)

    def bound(self, purpose: bytes) -> Words:
        return self


def test_compares_integers_exactly() -> None:
    quarter = Words(2**62 - 1, 2**62, 0, 2**64 - 1)
    assert poisson_sample(4, 0.25, quarter).tolist() == [0, 2]
    nearly_one = Words(2**64 - 2049, 2**64 - 2048)
    assert poisson_sample(2, 1 - 2**-53, nearly_one).tolist() == [0]
    assert poisson_sample(2, 2**-64, Words(0, 1)).tolist() == [0]
    assert poisson_sample(1, 2**-65, Words(0)).tolist() == []  # never above q


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = poisson_sample(1000, 0.3, InsecureRandomness(1))
    monkeypatch.setattr(sampling, "_CHUNK", 7)
    np.testing.assert_array_equal(poisson_sample(1000, 0.3, InsecureRandomness(1)), whole)


@pytest.mark.parametrize(
    ("population", "rate", "match"),
    [
        (-1, 0.5, "population=-1"),
        (1.5, 0.5, "population=1.5"),
        (3, 0, "sample_rate=0"),
        (3, 1.1, "sample_rate=1.1"),
        (3, float("nan"), "sample_rate=nan"),
    ],
)
def test_refuses(population: int, rate: float, match: str) -> None:
    with pytest.raises(AccountingError, match=f"Expected {match}"):
        poisson_sample(population, rate, SystemCsprng())
