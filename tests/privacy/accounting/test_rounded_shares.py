"""The lemma of sums of rounded Gaussians, against exact distributions of many digits."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from typing import Any

import mpmath
import numpy as np
import pytest

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.rounded_shares import (
    LEAST_DEVIATION,
    _log_bound,
    log_total_variation,
)
from fedpriv.privacy.usual import MAX_MEMBERS

Numbers = np.ndarray[Any, np.dtype[Any]]  # of mpmath
Places = Sequence[Fraction]


def exact(x: Fraction) -> Any:
    return mpmath.mpf(x.numerator) / x.denominator


def below(u: Any) -> Any:
    """Φ(u)."""
    return mpmath.erfc(-u / mpmath.sqrt(2)) / 2


def share(x: Fraction, deviation: Any, reach: int) -> Numbers:
    """The chances that ⌊x + Y + ½⌋ is −reach … reach."""
    half = Fraction(1, 2)
    edges = [below(exact(z - half - x) / deviation) for z in range(-reach, reach + 2)]
    return np.diff(np.array(edges, dtype=object))


def rounded_sum(total: Fraction, members: int, deviation: Any, reach: int) -> Numbers:
    """The chances that ⌊total + Y + ½ + U_2 + … + U_n⌋ is −reach … reach, Y of √n times s.

    Each is the density of total + Y + U_1 + … + U_n there: the n-th difference of the n-th
    integral of the normal density, of which J_k is the k-th.
    """
    spread = deviation * mpmath.sqrt(members)
    signs = [(-1) ** j * mpmath.binomial(members, j) for j in range(members + 1)]

    def integral(u: Any) -> Any:
        before, now = mpmath.npdf(u), below(u)
        for k in range(1, members):
            before, now = now, (u * now + before) / k
        return now

    ends = [Fraction(members, 2) - j for j in range(members + 1)]
    found = [
        sum(
            sign * integral(exact(z - total + end) / spread)
            for sign, end in zip(signs, ends, strict=True)
        )
        for z in range(-reach, reach + 1)
    ]
    return np.array(found, dtype=object) * spread ** (members - 1)


def distance(places: Places, deviation: float) -> Any:
    """The total variation between the two sums, to ten digits and more."""
    digits = 15 - int(_log_bound(len(places), deviation) / math.log(10))
    reach = round(deviation * math.sqrt(2 * digits * math.log(10))) + 2
    with mpmath.workdps(digits + 10 + 3 * len(places)):
        s = mpmath.mpf(deviation)
        found = reduce(np.convolve, [share(x - x // 1, s, reach) for x in places])
        total = sum((x - x // 1 for x in places), Fraction())
        wanted = rounded_sum(total, len(places), s, reach * len(places))
        for chances in (found, wanted):  # nothing was left out that would matter
            assert abs(sum(chances) - 1) < mpmath.mpf(10) ** (2 - digits)
        return sum(abs(found - wanted)) / 2


def some_places(members: int) -> list[Places]:
    """Zeros, halves, quarters, a single one that is off, an even spread, and at random."""
    rng, zero = random.Random(members), Fraction()
    return [
        [zero] * members,
        [Fraction(1, 2)] * members,
        [Fraction(1, 4)] * members,
        [Fraction(1, 4)] + [zero] * (members - 1),
        [Fraction(i, members) for i in range(members)],
        [Fraction(rng.randrange(-(2**40), 2**40), 2**38) for _ in range(members)],
    ]


nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    ("members", "deviation"),
    [
        *((2, s) for s in (0.5, 0.8, 1.2)),
        (3, 0.5),
        *(pytest.param(3, s, marks=nightly) for s in (0.8, 1.2)),
        *(pytest.param(2, s, marks=nightly) for s in (2.0, 3.0, 4.0)),
        *(pytest.param(n, s, marks=nightly) for n in (4, 6, 10) for s in (0.5, 0.8, 1.2)),
    ],
)
def test_a_sum_of_shares_is_as_near_to_the_rounded_sum_as_the_bound_says(
    members: int, deviation: float
) -> None:
    bound = mpmath.exp(_log_bound(members, deviation))
    found = max(distance(places, deviation) for places in some_places(members))
    exponent = 2 * (math.pi * deviation) ** 2 * (members - 1) / members
    assert 0 < found <= bound
    assert found < 0.8 * mpmath.exp(-exponent)
    if members == 2:  # all the terms of the difference point the same way at one of the places
        assert found == pytest.approx(0.4053 * mpmath.exp(-exponent), rel=1e-3)


def test_the_constants_of_the_proof_hold() -> None:
    """What is left out of the first terms, and what a range of 40 deviations adds up to."""
    for members in (*range(2, 60), *range(60, MAX_MEMBERS, 47), MAX_MEMBERS):
        c = 2 * (math.pi * LEAST_DEVIATION) ** 2
        first = math.log(2 * members) - c * (members - 1) / members
        terms = [
            w * math.log(2 * members) - c * max(w / 2, w - w * w / members) - first
            for w in range(2, members + 40)
        ]
        assert math.fsum(map(math.exp, terms)) < 1e-7
        # From there on each term is at most a half of the one before.
        assert math.log(2 * members) - c / 2 < math.log(0.5) and terms[-1] < -100
        spread = LEAST_DEVIATION * math.sqrt(members)
        reach = 40 * spread + members / 2
        factor = (reach + 1) / (spread * math.sqrt(2 * math.pi))
        assert factor < 19.2
        assert factor * 2 * members * (1 + 1e-7) < 40 * members


def test_the_squares_of_differences_are_as_large_as_the_proof_says() -> None:
    """Of whole numbers with 0 as a median: Q ≥ max(w/2, w − w²/n), and at most (2n)^w of each w."""
    for n in (2, 3, 4, 5):
        counts: dict[int, int] = {}
        for m in itertools.product(range(-3, 4), repeat=n):
            w = sum(i * i for i in m)
            counts[w] = counts.get(w, 0) + 1
            if sum(i > 0 for i in m) > n / 2 or sum(i < 0 for i in m) > n / 2:
                continue
            q = w - Fraction(sum(m) ** 2, n)
            assert q >= max(Fraction(w, 2), w - Fraction(w * w, n))
        assert all(count <= (2 * n) ** w for w, count in counts.items())


def test_one_member_is_exact() -> None:
    assert log_total_variation(1, 4.0) == -math.inf
    x = Fraction(1, 3)
    assert distance([x], 2.0) < 1e-12


def test_the_bound_never_falls_below_what_lies_far_out() -> None:
    assert log_total_variation(2, 1000.0) == pytest.approx(math.log(2) - 800)
    assert log_total_variation(2, 4.0) == pytest.approx(math.log(80) - 16 * math.pi**2)


@pytest.mark.parametrize(
    ("members", "deviation"),
    [(0, 4.0), (MAX_MEMBERS + 1, 4.0), (2, 1.99), (2, math.nan)],
)
def test_it_says_nothing_outside_of_what_is_proven(members: int, deviation: float) -> None:
    with pytest.raises(AccountingError, match="deviation"):
        log_total_variation(members, deviation)
