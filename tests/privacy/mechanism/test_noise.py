from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import chi2, kstest

from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism import noise
from fedpriv.privacy.mechanism.csprng import InsecureRandomness, RandomSource, SystemCsprng
from fedpriv.privacy.mechanism.noise import (
    LOG_SAMPLER_ERROR,
    MAX_DEVIATION,
    Z_ERROR,
    log_sampler_delta,
    rounded_gaussian,
)

Float = npt.NDArray[np.float64]
N, SIGMA = 2000, 0.7
ALPHA = 1e-9


def spread(x: Float, sigma: float) -> bool:
    """Chi-square test of the variance, both sides."""
    statistic = (x**2).sum() / sigma**2
    return bool(chi2.isf(1 - ALPHA / 2, x.size) < statistic < chi2.isf(ALPHA / 2, x.size))


def shape(x: Float, sigma: float) -> bool:
    """Kolmogorov–Smirnov test of the distribution."""
    return bool(kstest(x / sigma, "norm").pvalue > ALPHA)


class Constant:
    """The same word for ever."""

    is_secure = False

    def __init__(self, word: int) -> None:
        self.word = word

    def uint64(self, n: int) -> npt.NDArray[np.uint64]:
        return np.full(n, self.word, dtype=np.uint64)

    def bound(self, purpose: bytes) -> Constant:
        return self


def test_memory_is_bounded() -> None:
    import tracemalloc

    n = 2_000_000
    tracemalloc.start()
    rounded_gaussian(n, 1e9, SystemCsprng())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * n + 8_000_000


class Scripted:
    """The given words at the first call, and afterwards the next of `later`, the last for ever."""

    is_secure = False

    def __init__(self, words: Sequence[int], later: Sequence[int]) -> None:
        self.words = np.array(words, dtype=np.uint64)
        self.later = list(later)
        self.drawn = -1  # words of those after the first call

    def uint64(self, n: int) -> npt.NDArray[np.uint64]:
        if self.drawn < 0:
            self.drawn = 0
            return self.words
        before, self.drawn = self.drawn, self.drawn + n
        places = [min(place, len(self.later) - 1) for place in range(before, self.drawn)]
        return np.array([self.later[place] for place in places], dtype=np.uint64)

    def bound(self, purpose: bytes) -> Scripted:
        return self


def normal(chance: Any) -> Any:
    """z > 0 with P(|Z| > z) = chance, to 300 bits, by Newton's method on the logarithm."""
    z = mpmath.mpf(-float(ndtri(float(chance) / 2)))
    for _ in range(5):
        tail = mpmath.erfc(z / mpmath.sqrt(2))
        z += mpmath.log(tail / chance) * tail / (2 * mpmath.npdf(z))
    return z


def exact(word: int, later: Sequence[int], deviation: float) -> int:
    """What a word and those drawn after it mean, in 500 bits."""
    with mpmath.workprec(500):
        digits = [*later, *[later[-1]] * 4][:4]
        chance = sum((mpmath.ldexp(d, -64 * i) for i, d in enumerate(digits, 1)), mpmath.mpf(0))
        chance = mpmath.ldexp(word % 2**63 + chance, -63)
        size = int(mpmath.floor(deviation * normal(chance) + 0.5))
    return -size if word >> 63 else size


def edges(deviation: float, reaches: Sequence[float]) -> list[Any]:
    """P(|Y| > k + ½) in units of 2^-63, for k near these many deviations."""
    with mpmath.workprec(500):
        scale = deviation * mpmath.sqrt(2)
        ks = [round(deviation * reach) for reach in reaches]
        return [mpmath.ldexp(mpmath.erfc((k + 0.5) / scale), 63) for k in ks]


DEVIATIONS = [0.3, 1.0, 41.7, 1.3e5, 1.3e8, 7.7e9, 2.0**45]


@pytest.mark.slow
def test_float64_errs_far_less_than_its_bound() -> None:
    """What the exact sampler rests on, for the scipy that is installed; worst near 1.1."""
    rng = np.random.default_rng(0)
    tails = np.concatenate(
        [
            rng.integers(1, 2**63, 500),
            rng.integers(2**61, 2**63, 1000) >> rng.integers(0, 60, 1000),
            2**63 - 1 - (rng.integers(2**61, 2**63, 300) >> rng.integers(0, 62, 300)),
            np.round(2**64 * np.exp(-2.0) * (1 + rng.normal(size=500) * 1e-6)).astype(np.int64),
        ]
    ).astype(np.uint64)
    z = -ndtri((tails + 0.5) * 2.0**-64)
    y = 1.1e9 * z
    worst = 0.0
    with mpmath.workprec(500):
        for tail, rough, product in zip(tails.tolist(), z, y, strict=True):
            error = product - 1.1e9 * normal(mpmath.ldexp(tail + mpmath.mpf(0.5), -63))
            worst = max(worst, abs(float(error)) / 1.1e9 / (1 + rough))
    assert worst < Z_ERROR / 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "deviation",
    [pytest.param(d, marks=() if d == 41.7 else pytest.mark.slow) for d in DEVIATIONS],
)
def test_it_is_the_exact_inverse_at_the_edges_too(deviation: float) -> None:
    """Words in whose interval two integers meet, and their neighbours near and far."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2**64, 150, dtype=np.uint64).tolist()
    for edge in edges(deviation, np.concatenate([[0, 0, 8.9], rng.random(40) * 6])):
        near = [int(edge) + step for step in (-1, 0, 1, *(2 ** rng.integers(1, 40, 4)).tolist())]
        words += [min(max(w, 0), 2**63 - 1) | int(rng.integers(2)) << 63 for w in near]
    for later in ([1], [2**64 - 1], [int(rng.integers(2**63))]):
        found = rounded_gaussian(len(words), deviation, Scripted(words, later))
        expected = [exact(word, later, deviation) for word in words]
        assert found.tolist() == expected


@pytest.mark.slow
def test_a_comparison_is_right_to_the_last_bit_where_two_series_of_erfc_meet() -> None:
    """At 16383 bits; against the asymptotic one, which is right to e^(-x²) of its value."""
    deviation, bits, k = 2.0**30, 16_383, round(75.9 * 2**30.5)
    with mpmath.workprec(9000):
        x = (k + mpmath.mpf(0.5)) / (deviation * mpmath.sqrt(2))
        term, total, n = mpmath.mpf(1), mpmath.mpf(0), 1
        while n < x**2:
            total, term, n = total + term, -term * (2 * n - 1) / (2 * x**2), n + 1
        expected = mpmath.ldexp(mpmath.exp(-(x**2)) / (x * mpmath.sqrt(mpmath.pi)) * total, bits)
        significant = int(mpmath.floor(expected)).bit_length()
        found = noise._tail_chance(k, deviation, bits, significant)
        assert abs(found - expected) < mpmath.mpf(2) ** -44


@pytest.mark.parametrize("agreeing", [0, 1, 2, 3])
@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_bits_are_drawn_until_it_is_certain(agreeing: int, deviation: float) -> None:
    """The uniform agrees with an edge in 63 bits and in so many words more."""
    [edge] = edges(deviation, [1.2])
    k = round(deviation * 1.2)
    with mpmath.workprec(500):
        digits = [int(mpmath.ldexp(edge, 64 * i)) % 2**64 for i in range(1, 5)]
    for step, expected in ((-1, k + 1), (1, k)):  # a smaller tail chance is a larger number
        later = [*digits[:agreeing], digits[agreeing] + step]
        source = Scripted([int(edge)], later)
        assert rounded_gaussian(1, deviation, source).tolist() == [expected]
        assert source.drawn == (1, 3, 3, 7)[agreeing]  # as many bits again each time


def test_errors_of_float64_within_the_bound_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, deviation = 30_000, 3e9
    expected = rounded_gaussian(n, deviation, InsecureRandomness(3))
    rng = np.random.default_rng(4)

    def worse(p: Float) -> Float:
        z: Float = ndtri(p)
        return z + 0.8 * Z_ERROR * rng.choice([-1, 1], z.size) * (1 - z)

    monkeypatch.setattr(noise, "ndtri", worse)
    assert np.array_equal(rounded_gaussian(n, deviation, InsecureRandomness(3)), expected)
    monkeypatch.setattr(noise, "Z_ERROR", 0.0)  # the mutation: nothing is ever resolved
    assert not np.array_equal(rounded_gaussian(n, deviation, InsecureRandomness(3)), expected)


@pytest.mark.parametrize("deviation", [0.2, 0.5, 1.0, 2.7])
def test_every_integer_has_its_chance(deviation: float) -> None:
    n = 400_000
    x = rounded_gaussian(n, deviation, InsecureRandomness(5))
    k = np.arange(-15, 16)
    expected = n * (ndtr((k + 0.5) / deviation) - ndtr((k - 0.5) / deviation))
    counts = np.bincount(x + 15, minlength=31)
    seen = expected > 5
    statistic = ((counts - expected)[seen] ** 2 / expected[seen]).sum()
    assert statistic < chi2.isf(ALPHA, seen.sum())
    shifted = np.roll(expected, 1)[seen]
    assert ((counts[seen] - shifted) ** 2 / shifted).sum() > chi2.isf(ALPHA, seen.sum())


@pytest.mark.parametrize("accepts", [spread, shape])
@pytest.mark.parametrize("source", [InsecureRandomness(0), SystemCsprng()])
@pytest.mark.parametrize("deviation", [1e3, 2e8])
def test_rounded_noise_accepts_sigma_and_rejects_others(
    accepts: Callable[[Float, float], bool], source: RandomSource, deviation: float
) -> None:
    x = rounded_gaussian(5 * N, deviation, source)
    assert x.dtype == np.int64
    assert accepts(x.astype(float), deviation)
    assert not accepts(x.astype(float), deviation * 2 / 3)
    assert not accepts(x.astype(float), deviation * 3 / 2)


def test_tails_and_moments() -> None:
    n, deviation = 2_000_000, 1e9
    x = rounded_gaussian(n, deviation, InsecureRandomness(1)) / deviation
    assert abs(x.mean()) < 6 / np.sqrt(n)
    assert abs((x**3).mean()) < 6 * np.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 6 * np.sqrt(96 / n)
    for bound, chance in [(2, 0.04550026), (3, 0.00269980), (4, 6.334248e-5)]:
        expected = n * chance
        assert abs((np.abs(x) > bound).sum() - expected) < 6 * np.sqrt(expected)


def test_numbers_are_uncorrelated() -> None:
    x = rounded_gaussian(2 * N, 1e9, InsecureRandomness(2)) / 1e9
    for lag in (1, 2, N):
        assert abs((x[lag:] * x[:-lag]).sum()) < 6 * np.sqrt(x.size - lag)


def test_is_independent_between_calls() -> None:
    source = SystemCsprng()
    first, second = (rounded_gaussian(N, 1e9, source) / 1e9 for _ in range(2))
    assert not np.intersect1d(first, second).size
    assert abs(first @ second) < 7 * np.sqrt(N)


@pytest.mark.parametrize("word", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_generator_that_is_stuck_ends_all_the_same(word: int) -> None:
    found = rounded_gaussian(2, 1e9, Constant(word))
    assert np.abs(found).max() < 302e9
    assert (np.abs(found).max() > 8e9) == (word % 2**63 < 2)


def test_the_tail_reaches_as_far_as_the_bits_of_a_uniform() -> None:
    """A 1 in the last of 65535 bits is 301 deviations; beyond is what may be off, and less."""
    source = Scripted([0], [0] * 1022 + [1])
    assert rounded_gaussian(1, 1.0, source).tolist() == [301]
    assert source.drawn == 1023
    with mpmath.workprec(200):
        beyond = mpmath.log(mpmath.erfc(301.5 / mpmath.sqrt(2)))
    assert 1.01 * LOG_SAMPLER_ERROR < beyond < LOG_SAMPLER_ERROR


@pytest.mark.parametrize("n", [0, 1, 7, 16, 33])
def test_rounded_noise_in_parts(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_WORDS", 16)
    x = rounded_gaussian(n, 1e9, InsecureRandomness(6))
    assert x.shape == (n,)
    assert np.unique(x).size == n


def test_parts_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a deviation where float64 leaves one number in ten uncertain."""
    monkeypatch.setattr(noise, "_WORDS", 64)
    deviation, stream = 2.0**41, InsecureRandomness(7)
    parts = [rounded_gaussian(size, deviation, stream) for size in (64, 64, 30)]
    found = rounded_gaussian(158, deviation, InsecureRandomness(7))
    assert np.array_equal(found, np.concatenate(parts))


def test_the_sampler_adds_nothing_to_delta() -> None:
    """Less than 1e-300 with 10⁸ parameters, 10⁵ steps and ε = 40,000."""
    values = 10**8 * 10**5
    added = log_sampler_delta(values, 40_000.0)
    assert added < -300 * math.log(10)
    with mpmath.workprec(200):
        exact = (1 + mpmath.exp(40_000)) * values * mpmath.mpf(2) ** -65472
        assert added == pytest.approx(float(mpmath.log(exact)), rel=1e-12)


@pytest.mark.parametrize(
    ("n", "deviation"),
    [(-1, 1.0), (1.5, 1.0), (1, 0.0), (1, -1.0), (1, float("nan")), (1, 2 * MAX_DEVIATION)],
)
def test_rounded_noise_refuses(n: int, deviation: float) -> None:
    with pytest.raises(AccountingError, match="Expected"):
        rounded_gaussian(n, deviation, SystemCsprng())
