"""The filter against its sum written out, and the noise that it says is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.errors import RawValueError
from fedpriv.gradients.low_pass import LowPass
from fedpriv.privacy.privatised import public, received

Array = np.ndarray[Any, np.dtype[np.float64]]


def weights(pole: float, rounds: int) -> Array:
    """Of each gradient in the answer of the last round, with the correction of the first rounds."""
    share = (1 - pole) / 2
    answer = np.array([share] + [share * (1 + pole) * pole**k for k in range(rounds - 1)])
    found: Array = answer[::-1] / answer.sum()
    return found


@settings(deadline=None, max_examples=100)
@given(
    pole=st.floats(0, 0.99),
    rounds=st.integers(1, 12),
    variances=st.lists(st.floats(0, 10), min_size=12, max_size=12),
    seed=st.integers(0, 2**31),
)
def test_it_is_a_weighted_sum_of_what_came(
    pole: float, rounds: int, variances: list[float], seed: int
) -> None:
    gradients = np.random.default_rng(seed).standard_normal((rounds, 3)).astype(np.float32)
    made = LowPass(pole)
    for gradient, variance in zip(gradients, variances, strict=False):
        found, noise = made(received(gradient), variance)
    expected = weights(pole, rounds)
    assert np.allclose(found.value, expected @ gradients, atol=1e-4)
    assert noise == pytest.approx(float(np.square(expected) @ variances[:rounds]), abs=1e-9)


def test_a_constant_passes_and_an_alternating_one_does_not() -> None:
    constant, alternating = LowPass(0.8), LowPass(0.8)
    one = np.ones(2, dtype=np.float32)
    for number in range(60):
        passed, _ = constant(received(one), 0.0)
        assert np.allclose(passed.value, 1, atol=1e-5)  # from the first round on
        stopped, _ = alternating(received(one if number % 2 else -one), 0.0)
    assert np.abs(stopped.value).max() < 1e-3


def test_a_state_goes_on_where_it_was() -> None:
    gradients = [received(g) for g in np.random.default_rng(0).normal(size=(6, 3)).astype("f4")]
    straight, first, second = LowPass(0.7), LowPass(0.7), LowPass(0.7)
    for gradient in gradients:
        wanted = straight(gradient, 2.0)
    second.restore(first.state())  # of nothing
    for gradient in gradients[:3]:
        first(gradient, 2.0)
    second.restore(first.state())
    for gradient in gradients[3:]:
        found = second(gradient, 2.0)
    assert np.array_equal(found[0].value, wanted[0].value) and found[1] == wanted[1]


def test_a_raw_gradient_is_refused_and_changes_nothing() -> None:
    made = LowPass(0.5)
    with pytest.raises(RawValueError):
        made(np.ones(2, dtype=np.float32), 1.0)  # type: ignore[arg-type]
    one, _ = made(public(np.ones(2, dtype=np.float32)), 1.0)
    assert np.allclose(one.value, 1)
