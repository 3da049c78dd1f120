"""A share of the noise of a secure sum, and what a plan costs with nothing else."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.accounting.shares import alone, share_of, shares_of

DELTA = 1e-5


@given(noise=st.floats(1e-3, 1e3), shares=st.integers(1, 1000))
def test_the_shares_of_a_noise_make_no_more_than_the_whole(noise: float, shares: int) -> None:
    """Nor is a share less than it has to be by more than the last digit."""
    squared = Fraction(noise) ** 2
    share = Fraction(share_of(noise, shares))
    assert share**2 * shares <= squared < (share * (1 + Fraction(4, 2**53))) ** 2 * shares


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "expected"),
    [
        (0.2, 30, 2.0, {3: 4.3, 6: 7.6, 9: 11}),
        (0.2, 30, 4.0, {3: 9.9, 6: 19, 9: 29}),
        (0.05, 200, 2.0, {3: 5.1, 6: 11, 9: 19}),
        (0.01, 400, 4.0, {3: 22, 6: 61, 9: 107}),
    ],
)
def test_what_trust_is_worth(
    rate: float, steps: int, epsilon: float, expected: dict[int, float]
) -> None:
    """Figures of the design, for sets of one more site than there are shares."""
    event = Event(rate, calibrate_noise(epsilon, DELTA, rate, steps), steps)
    for shares, figure in expected.items():
        found = alone(event, DELTA, shares + 1, 1)
        assert (found.shares, found.sites, found.max_colluding) == (shares, shares + 1, 1)
        assert found.epsilon == pytest.approx(figure, rel=0.03)
        assert found.noise_multiplier == share_of(event.noise_multiplier, shares)


def test_if_all_others_may_collude_anyway_nothing_is_shared() -> None:
    event = Event(0.1, 1.5, 8)
    for sites, most in ((2, 1), (4, 3)):
        assert shares_of(sites, most) == 1
        assert alone(event, DELTA, sites, most).epsilon == epsilon_upper([event], DELTA)
    assert shares_of(3, 7) == 1
    assert alone(event, DELTA, 4, 0).shares == 4


def test_a_share_that_bounds_nothing_has_no_finite_figure() -> None:
    assert alone(Event(0.1, 1e-119, 8), DELTA, 1000, 0).epsilon == math.inf


@pytest.mark.parametrize(
    ("sites", "most", "words"),
    [
        (1, 0, "^sites: must be a whole number from 2"),
        (0, 0, "^sites"),
        (-3, 0, "^sites"),
        (10**6, 1, "^sites"),
        (4, -1, "^privacy.max_colluding: must be a whole number from 0 to 3"),
        (4, 4, "^privacy.max_colluding"),
    ],
)
def test_what_is_no_sum_is_refused(sites: int, most: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        alone(Event(0.1, 1.5, 8), DELTA, sites, most)
