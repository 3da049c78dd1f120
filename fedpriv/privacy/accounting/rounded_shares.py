"""Bound how far a sum of rounded Gaussians is from a rounded Gaussian sum."""

from __future__ import annotations

import math

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.usual import MAX_MEMBERS

LEAST_DEVIATION = 2.0  # the bound is proven from here on, for up to MAX_MEMBERS
_LOG_CUT = math.log(2) - 800.0  # both sums, beyond 40 deviations


def log_total_variation(members: int, deviation: float) -> float:
    """Bound how far a sum of shares is from a rounded Gaussian sum: its ln, for one coordinate.

    For any real x_i and independent Y_i ~ N(0, s²), the sum of the n integers ⌊x_i + Y_i + ½⌋ is
    within 40·n·exp(−2π²s²(n−1)/n) + 2e⁻⁸⁰⁰ in total variation of
    ⌊Σx_i + Y + ½ + U_2 + … + U_n⌋, Y ~ N(0, n·s²) and the U_j uniform on (−½, ½), all independent:
    post-processing of Σx_i + Y. For n = 1 the two are the same.

    Args:
        members: n, in 1 … MAX_MEMBERS.
        deviation: s, in coarse steps, at least LEAST_DEVIATION.

    Raises:
        AccountingError: outside the range for which that is proven.

    Formal guarantees:
        1. Let g be the density of Y_i + U_i. A share is z with chance g(z − x_i), and the other
           sum is z with chance g*…*g(z − Σx_i), n times. By Poisson's formula the Fourier series
           of the first over the integers is Σ_m ĝ(θ + m)·e^(−2πi(θ+m)x_i), so that of the sum of
           shares is the product of n of these: a sum over (m_1 … m_n). Those with all m_i equal
           are the series of the second sum, to the last term. The difference d is the rest.
        2. |ĝ(ω)| ≤ exp(−2π²s²ω²), so a term of the rest is at most
           exp(−2π²s²(n(θ + m̄)² + Q)), Q = Σ(m_i − m̄)². Whatever the x_i are, they only turn
           it. Integrated over θ, with the terms that differ by a common shift put together:
           |d(z)| ≤ Θ/(s√(2πn)), where Θ = Σ exp(−cQ), c = 2π²s², over the m that are not
           constant, one for each set of shifts.
        3. Take the m of which 0 is a median, and let w = Σm_i². At most n/2 of its numbers are
           positive and at most n/2 negative, so (Σm_i)² is at most w·n/2, and at most w². Hence
           Q ≥ max(w/2, w − w²/n), and for w = 1 it is (n−1)/n. There are at most (2n)^w such m.
           For s ≥ 2 and n ≤ 1000, all of w ≥ 2 adds less than 1e-7 of what w = 1 adds:
           Θ ≤ 2n·exp(−c(n−1)/n)·(1 + 1e-7).
        4. Both sums are within R = 40·s√n + n/2 of Σx_i but for 2e⁻⁸⁰⁰ of the chance. Half of
           Σ|d| is at most (R + 1)·Θ/(s√(2πn)) + 2e⁻⁸⁰⁰, and (R + 1)/(s√(2πn)) < 19.2.

        Measured by convolution, the true distance is 0.41 exp(−π²s²) for n = 2, and below
        0.8 exp(−c(n−1)/n) for n up to 10.

    Source:
        Ours; step 1 is the Poisson summation formula. That discrete Gaussians add up to almost
        one of their own: Kairouz, Liu and Steinke 2021, "The Distributed Discrete Gaussian
        Mechanism". This is the same for rounded ones.
    """
    if not 1 <= members <= MAX_MEMBERS or not deviation >= LEAST_DEVIATION:
        raise AccountingError(
            f"Expected members={members} in 1 … {MAX_MEMBERS} and a deviation={deviation:g} of"
            f" {LEAST_DEVIATION:g} or more."
        )
    return -math.inf if members == 1 else _log_bound(members, deviation)


def _log_bound(members: int, deviation: float) -> float:
    rest = 2 * (math.pi * deviation) ** 2 * (members - 1) / members
    return float(np.logaddexp(math.log(40 * members) - rest, _LOG_CUT))
