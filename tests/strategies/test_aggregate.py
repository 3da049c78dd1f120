from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.privacy.privatised import TrustModel, public, received
from fedpriv.training.dp_lora import DpLora
from fedpriv_strategies.aggregate import SiteSum, weighted_mean


@given(
    values=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6),
    noise=st.floats(0.1, 50),
)
def test_equal_noise_is_the_pooled_sum_over_the_pooled_expectation(
    values: list[float], noise: float
) -> None:
    sums = [
        SiteSum(received(np.array([v, -v], dtype=np.float32)), noise, 3.0 + i)
        for i, v in enumerate(values)
    ]
    expected = sum(np.float64(np.float32(v)) for v in values) / sum(
        3.0 + i for i in range(len(values))
    )
    assert weighted_mean(sums).value == pytest.approx([expected, -expected], rel=1e-5, abs=1e-6)


def test_weights_are_inverse_variances_and_their_own_sizes() -> None:
    one = SiteSum(received(np.float32([6.0])), 1.0, 10.0)
    two = SiteSum(received(np.float32([3.0])), 2.0, 20.0)
    assert weighted_mean([one, two]).value == pytest.approx((6 + 3 / 4) / (10 + 20 / 4))


def test_the_mean_rests_on_the_word_of_its_sites() -> None:
    sent, known = (SiteSum(maker(np.ones(2, "f4")), 1.0, 1.0) for maker in (received, public))
    assert weighted_mean([sent, known]).trust_model == TrustModel.RECEIVED
    assert weighted_mean([known]).trust_model == TrustModel.PUBLIC


def test_it_is_unbiased_for_the_mean_and_best_among_linear_weights() -> None:
    """Two sites measure the same mean with different noise: no other weights do better."""
    sizes, sigmas = np.array([10.0, 20.0]), np.array([1.0, 3.0])

    def variance(a: np.ndarray) -> float:
        return float((a**2 * sigmas**2).sum() / (a @ sizes) ** 2)

    chosen = sizes / sigmas**2  # what minimises it has a factor of n: a = 1/σ² is for equal n
    assert variance(chosen) <= variance(1 / sigmas**2)
    equal = np.array([10.0, 10.0])
    best = 1 / sigmas**2
    for other in ([1.0, 1.0], [1.0, 0.0], [0.5, 0.5], [1.0, 0.2]):
        a = np.array(other)
        assert (best**2 * sigmas**2).sum() / (best @ equal) ** 2 <= (
            (a**2 * sigmas**2).sum() / (a @ equal) ** 2 + 1e-15
        )


def test_two_sites_give_what_the_pooled_records_give(make_worker: Callable[..., Any]) -> None:
    """Linear, hence exact: the sites' clipped sums add up to the pooled one."""
    from fedpriv.data.encode import Example

    worker = make_worker("llama", microbatch=3)
    rng = np.random.default_rng(0)
    units = [
        tuple(
            Example([1, *ids], [-100, *ids])
            for ids in (rng.integers(3, 250, size=rng.integers(3, 40)).tolist() for _ in range(k))
        )
        for k in (1, 2, 1, 3, 1, 0, 1)
    ]
    parameters = worker.vector.read() + rng.normal(size=worker.vector.size).astype(np.float32) / 20
    method = DpLora()
    parts = [
        method.clipped_sum(worker, chosen, parameters, 0.5).value.numpy()
        for chosen in (units[:3], units[3:])
    ]
    pooled = method.clipped_sum(worker, units, parameters, 0.5).value.numpy()
    assert np.abs(parts[0] + parts[1] - pooled).max() < 1e-12
    mean = weighted_mean(
        [
            SiteSum(received(part.astype(np.float32)), 1.3, 0.2 * n)
            for part, n in zip(parts, (3, 4), strict=True)
        ]
    )
    assert mean.value == pytest.approx(pooled / (0.2 * 7), abs=1e-6)
