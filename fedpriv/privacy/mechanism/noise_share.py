"""A site's share of the noise of a sum that several sites make together.

    γ   the fine step, of which the site's own sum is a whole number, as without a secure sum
    Γ   2^a·γ, the coarse step in which a share travels
    k   max(1, |U| − t): of a set U of sites at most t collude, so the noise is divided among k
    s   σC/(√k·Γ), the deviation of one share's noise in coarse steps

Each share is rounded by itself, so a sum of shares is not the rounding of a sum. The lemma of
`rounded_shares` bounds the difference, and `check_added_delta` what that adds to δ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.rounded_shares import log_total_variation
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv.privacy.mechanism.grid import deviation, step_of
from fedpriv.privacy.mechanism.noise import LOG_SAMPLER_ERROR, rounded_gaussian
from fedpriv.privacy.usual import MAX_MEMBERS, Numerics

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.plan import Plan
    from fedpriv.privacy.mechanism.csprng import RandomSource

Whole = np.ndarray[Any, np.dtype[np.int64]]

LEAST_DEVIATION = 4.0  # s, at the most shares that a plan allows
MOST_ADDED = 2.0**-60  # share of δ that all releases of a plan may add
_BLOCK = 2**20  # values that noise is drawn for at a time


def plan_shares(plan: Plan, members: int) -> int:
    """Return k for a set of a plan's sites.

    Raises:
        AccountingError: each site adds all of the plan's noise; or a set can't have as many sites.
    """
    if plan.max_colluding is None:
        raise AccountingError("Expected a plan whose noise is shared.")
    most = plan.shares + plan.max_colluding
    if not 1 <= members <= most:
        raise AccountingError(f"Expected members={members} in 1 … {most} of the plan.")
    return shares_of(members, plan.max_colluding)


@dataclass(frozen=True)
class SharedGrid:
    """The steps in which the sums of a plan are shared, and how much noise a share gets.

    Args:
        shares: max(1, N − t), the most that the noise is ever divided into.
        size: P, the number of values in a sum.

    Raises:
        AccountingError: the noise is more than can be drawn; or so little that even in fine steps
            a share's deviation is below LEAST_DEVIATION; or more than MAX_MEMBERS shares.

    Privacy:
        Public: a function of the plan and the number of trained parameters.
    """

    noise_multiplier: float
    clip_norm: float
    numerics: Numerics
    shares: int
    size: int

    def __post_init__(self) -> None:
        if type(self.shares) is not int or not 1 <= self.shares <= MAX_MEMBERS or self.size < 1:
            raise AccountingError(
                f"Expected shares={self.shares!r} in 1 … {MAX_MEMBERS}, and size={self.size} >= 1."
            )
        if self.deviation(self.shares) < LEAST_DEVIATION:
            raise AccountingError(
                f"Expected more than noise_multiplier={self.noise_multiplier:g}, to divide it into"
                f" {self.shares} shares. Propose a smaller epsilon, or privacy.trust = 'local'."
            )

    @cached_property
    def fine(self) -> float:
        """γ, the fine step."""
        return step_of(self.numerics, self.clip_norm, self.size)

    @cached_property
    def shift(self) -> int:
        """a, the largest for which s is at least LEAST_DEVIATION at the most shares."""
        return math.frexp(self.deviation(self.shares) / LEAST_DEVIATION)[1] - 1

    @property
    def step(self) -> float:
        """Γ = 2^a·γ."""
        return math.ldexp(self.fine, self.shift)

    def deviation(self, shares: int) -> float:
        """Return σC/(√k·γ), the deviation of one of k shares in fine steps, rounded up.

        k times its square is at least (σC/γ)², exactly, so k shares have the noise of one site.
        """
        whole = Fraction(self.noise_multiplier) * Fraction(self.clip_norm) / Fraction(self.fine)
        found = deviation(self.noise_multiplier, self.clip_norm, self.fine) / math.sqrt(shares)
        while shares * Fraction(found) ** 2 < whole**2:
            found = math.nextafter(found, math.inf)
        return found


def shared_grid(plan: Plan, size: int) -> SharedGrid:
    """Return the grid on which a plan's sums of `size` values are shared.

    Raises:
        AccountingError: as `SharedGrid`.
    """
    return SharedGrid(plan.noise_multiplier, plan.clip_norm, plan.numerics, plan.shares, size)


def add_share(total: Whole, grid: SharedGrid, shares: int, csprng: RandomSource) -> Whole:
    """Turn a sum in fine steps into a share in coarse ones, in place, and return it.

    z = (S + N + 2^(a−1)) >> a, without the offset where a = 0, with N of `rounded_gaussian`.

    Args:
        total: S, (P,), of at most 2⁶² in size: with noise below 2⁵¹ and an offset below 2⁴¹
            nothing overflows.
        shares: k, for the set that is now fixed.

    Formal guarantees:
        Floors nest, ⌊⌊r⌋/2^a⌋ = ⌊r/2^a⌋, and N = ⌊Y' + ½⌋ for a real Gaussian Y'. So, but for
        the sampler's error, z = ⌊x + Y + ½⌋ with x = (S + ½)/2^a (x = S where a = 0) and
        Y = Y'/2^a: the share is post-processing of x + Y. Two neighbouring sums are at most C/γ
        apart in fine steps, and so at most C/Γ in x.

    Privacy:
        One share has noise of σC/√k only: it must not leave unmasked.
    """
    spread, offset = grid.deviation(shares), 1 << grid.shift >> 1
    for start in range(0, total.size, _BLOCK):
        part = total[start : start + _BLOCK]
        part += rounded_gaussian(part.size, spread, csprng)
        part += offset
        part >>= grid.shift
    return total


def log_added_delta(plan: Plan, size: int, epsilon: float, *, alone: bool = False) -> float:
    """Return ln of what sharing adds to δ of all that a plan releases.

    (1 + e^ε)·T·P·(distance + k·e^LOG_SAMPLER_ERROR), at the k that makes it largest.

    Args:
        epsilon: ε of the plan's claim.
        alone: for the claim that trusts nobody. One share is post-processing of the Gaussian
            mechanism with σ/√k, so the lemma has no part in it, and the distance is 0.

    Formal guarantees:
        Of a set U at least k members do not collude, this site among them; take k such members.
        Shares of any others are independent of this site's records, so to add them is
        post-processing: the lemma is needed for n = k alone, at the deviation of k shares, and
        not at all for k = 1. The noise of the k is √k·σC/√k = σC. For k ≥ 2 the bound grows with
        k, as (k−1)/k² falls: it is largest at `plan.shares`.

        The members' sums are independent of all noise. Given them, the P coordinates are
        independent of each other, so their distances add up; a mixture over this site's Poisson
        sample is no further from its ideal than the furthest part; and T slots, each
        close to its ideal given the slots before, add up too. Exchanging the ideal for what runs,
        once on each of two neighbouring populations, turns δ into δ + (1 + e^ε)·(all of it).
    """
    grid = shared_grid(plan, size)
    shares = 1 if alone else grid.shares
    coarse = math.ldexp(grid.deviation(shares), -grid.shift)
    distance = log_total_variation(shares, coarse)
    return _log_added(plan.steps * size, epsilon, shares, distance)


def _log_added(values: int, epsilon: float, shares: int, log_distance: float) -> float:
    each = np.logaddexp(log_distance, math.log(shares) + LOG_SAMPLER_ERROR)
    return float(np.logaddexp(0.0, epsilon) + math.log(values) + each)


def check_added_delta(
    plan: Plan, size: int, epsilon: float, delta: float, *, alone: bool = False
) -> None:
    """Refuse a plan for which sharing would raise δ by more than its share MOST_ADDED.

    Raises:
        AccountingError: e to `log_added_delta` is more than MOST_ADDED of δ.
    """
    found = log_added_delta(plan, size, epsilon, alone=alone)
    if not found <= math.log(MOST_ADDED * delta):
        raise AccountingError(
            f"Expected shared noise to add at most 2^-60 of delta={delta:g} at"
            f" epsilon={epsilon:.4g}, not 1e{found / math.log(10):.0f}. Propose a smaller epsilon,"
            " or fewer steps."
        )
