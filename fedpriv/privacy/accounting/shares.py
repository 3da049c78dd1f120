"""Compute a share of a secure sum's noise, and what a plan costs with no other noise.

Everything here is computed from public numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import Event, epsilon_upper
from fedpriv.privacy.usual import MAX_MEMBERS


@dataclass(frozen=True)
class Alone:
    """A plan as it is for a site if every other site works with the server.

    Attributes:
        sites: the most sites in a sum.
        max_colluding: the number that may collude while the claim with trust holds.
        shares: the most shares into which the noise is divided.
        noise_multiplier: the noise of one share.
        epsilon: the plan's cost then: an upper bound, at its δ; infinite if none is finite.
    """

    sites: int
    max_colluding: int
    shares: int
    noise_multiplier: float
    epsilon: float


def shares_of(sites: int, max_colluding: int) -> int:
    """Return k = max(1, |U| − t), the number of shares into which the noise of a set is divided.

    At least k members of a set do not collude, or the set has a single share and each member
    adds all the noise, as without a secure sum.
    """
    return max(1, sites - max_colluding)


def share_of(noise_multiplier: float, shares: int) -> float:
    """Return noise_multiplier / √shares, rounded down.

    Source:
        Variances of independent Gaussians add up, so this many shares have the variance of all.
    """
    share = noise_multiplier / math.sqrt(shares)
    while Fraction(share) ** 2 * shares > Fraction(noise_multiplier) ** 2:
        share = math.nextafter(share, 0.0)
    return share


def alone(event: Event, delta: float, sites: int, max_colluding: int) -> Alone:
    """Compute what a secure sum's steps cost a site that nobody else's noise protects.

    Raises:
        ConfigError: there are fewer than two sites, or all of them may collude.
        AccountingError: when δ is outside (0, 1).
    """
    if not 2 <= sites <= MAX_MEMBERS:
        raise ConfigError(
            f"must be a whole number from 2 to {MAX_MEMBERS}, as one site has nobody to share"
            " noise with",
            key="sites",
            value=sites,
            fix="Name so many sites.",
        )
    if not 0 <= max_colluding < sites:
        problem = f"must be a whole number from 0 to {sites - 1}, so that a site is left to protect"
        key = "privacy.max_colluding"
        raise ConfigError(problem, key=key, value=max_colluding, fix="Such as 1.")
    shares = shares_of(sites, max_colluding)
    noise = share_of(event.noise_multiplier, shares)
    epsilon = epsilon_upper([Event(event.sample_rate, noise, event.count)], delta)
    return Alone(sites, max_colluding, shares, noise, epsilon)
