from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2, kstest

from fedpriv.errors import AccountingError
from fedpriv.privacy import noise
from fedpriv.privacy.entropy import Entropy, InsecureEntropy, SystemEntropy
from fedpriv.privacy.noise import gaussian

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


@pytest.mark.parametrize("accepts", [spread, shape])
@pytest.mark.parametrize("source", [InsecureEntropy(0), SystemEntropy()])
@pytest.mark.parametrize("draws", [1, 2, 4])
def test_accepts_sigma_and_rejects_others(
    accepts: Callable[[Float, float], bool], source: Entropy, draws: int
) -> None:
    x = SIGMA * gaussian(5 * N, source, draws=draws)
    assert accepts(x, SIGMA)
    assert not accepts(x, SIGMA * 2 / 3)
    assert not accepts(x, SIGMA * 3 / 2)


@pytest.mark.parametrize("accepts", [spread, shape])
def test_rejects_draws_that_are_not_rescaled(accepts: Callable[[Float, float], bool]) -> None:
    parts = [gaussian(N, InsecureEntropy(0, i), draws=1) for i in range(4)]
    assert accepts(sum(parts, np.zeros(N)) / 2, 1.0)
    assert not accepts(sum(parts, np.zeros(N)) / 4, 1.0)
    assert not accepts(sum(parts, np.zeros(N)), 1.0)


def test_tails_and_moments() -> None:
    n = 2_000_000
    x = gaussian(n, InsecureEntropy(1))
    assert abs(x.mean()) < 6 / np.sqrt(n)
    assert abs((x**3).mean()) < 6 * np.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 6 * np.sqrt(96 / n)
    for bound, chance in [(2, 0.04550026), (3, 0.00269980), (4, 6.334248e-5)]:
        expected = n * chance
        assert abs((np.abs(x) > bound).sum() - expected) < 6 * np.sqrt(expected)


def test_numbers_are_uncorrelated() -> None:
    x = gaussian(2 * N, InsecureEntropy(2))
    for lag in (1, 2, N):  # N: the other half of the same Box–Muller pair
        assert abs((x[lag:] * x[:-lag]).sum()) < 6 * np.sqrt(x.size - lag)


def test_is_independent_between_calls() -> None:
    source = SystemEntropy()
    first, second = gaussian(N, source), gaussian(N, source)
    assert not np.intersect1d(first, second).size
    assert abs(first @ second) < 7 * np.sqrt(N)


class Constant:
    """The same word for ever."""

    is_secure = False

    def __init__(self, word: int) -> None:
        self.word = word

    def uint64(self, n: int) -> npt.NDArray[np.uint64]:
        return np.full(n, self.word, dtype=np.uint64)


def test_extreme_words_are_finite() -> None:
    largest = gaussian(2, Constant(0), draws=1)
    assert np.abs(largest).max() == pytest.approx(np.sqrt(106 * np.log(2)))
    np.testing.assert_allclose(gaussian(2, Constant(2**64 - 1), draws=1), 0, atol=1e-15)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 100, 101])
def test_sizes(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_PAIRS", 16)
    x = gaussian(n, SystemEntropy())
    assert x.shape == (n,)
    assert x.dtype == np.float64
    assert np.unique(x).size == n


def test_memory_is_bounded() -> None:
    import tracemalloc

    tracemalloc.start()
    gaussian(2_000_000, SystemEntropy())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000 + 8_000_000


@pytest.mark.parametrize(("n", "draws"), [(-1, 4), (1.5, 4), (1, 0), (1, 1.5)])
def test_refuses(n: int, draws: int) -> None:
    with pytest.raises(AccountingError, match="Expected"):
        gaussian(n, SystemEntropy(), draws=draws)
