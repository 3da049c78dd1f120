"""Seeds are drawn by softmax |z|: none twice, by the chances that are stated."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.synthetic.selection import select


@given(
    st.lists(st.floats(width=32), min_size=1, max_size=20),
    st.integers(1, 20),
    st.text(max_size=5),
)
def test_any_coefficients_give_that_many_places(values: list[float], count: int, seed: str) -> None:
    count = min(count, len(values))
    found = select(np.array(values), count, seed=seed)
    assert sorted(set(found)) == list(found)
    assert len(found) == count
    assert set(found) <= set(range(len(values)))


def test_one_is_drawn_by_its_chance() -> None:
    """Over 4,000 draws of one of three, within five deviations."""
    z, draws = np.array([0.3, -1.2, 0.8]), 4000
    chances = np.exp(np.abs(z))
    chances /= chances.sum()
    counts = np.zeros(3)
    for seed in range(draws):
        counts[list(select(z, 1, seed=f"s{seed}"))] += 1
    deviation = np.sqrt(chances * (1 - chances) / draws)
    assert (np.abs(counts / draws - chances) < 5 * deviation).all()


def test_the_size_decides_and_not_the_sign() -> None:
    for seed in range(20):
        found = select(np.array([0.0, -900.0, 0.1, 800.0]), 2, seed=str(seed))
        assert found == (1, 3)
