"""Add up the masked shares of a set of sites to one gradient, and choose the sum's bits."""

from __future__ import annotations

import math

import numpy as np

from fedpriv.errors import AccountingError, ProtocolError
from fedpriv.models.vector import Vector
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.privacy.mechanism.privatised import Privatised, aggregated
from fedpriv.protocol import Proposal
from fedpriv.secure_sum.members import Bits
from fedpriv.secure_sum.total import Total
from fedpriv.wire import MaskedBlocks

_RARE = math.log(1e12)  # a batch is larger than its bound once in 1e12 sums


class SumOfSet:
    """ĝ = Σ S̃ᵢ / Σ q nᵢ over a set: DP-SGD on its pooled records, with noise by the set's size.

    Args:
        size: P, length of the vector.
        members: |U|, how many sites are in the set.
        units: Σ q nᵢ, units that are expected in the sum; never the realised batch.
        bits: bits of a value; by default as many as such a sum needs.

    Attributes:
        missing: how many shares were not added yet.

    Privacy:
        A share says nothing. What `take` returns is privatised by the noise that all sites of the
        set added, if at most `max_colluding` of them did not.
    """

    def __init__(
        self, proposal: Proposal, size: int, members: int, units: float, bits: Bits | None = None
    ) -> None:
        shared = proposal.shared
        assert shared is not None
        self._clip_norm = proposal.privacy.clip_norm
        noise, numerics = shared.noise_multiplier, proposal.privacy.numerics
        self._grid = SharedGrid(noise, self._clip_norm, numerics, shared.shares, size)
        self._deviation = total_deviation(self._grid, members, shared.max_colluding)
        self.size, self.units, self.missing = size, units, members
        self.bits = bits or bits_for(units, self._grid, shared.sites)
        self._total = Total(size, self.bits)

    @property
    def share_bytes(self) -> int:
        """How many bytes the values of a share have when it is sent."""
        return self.size * self.bits // 8

    def add(self, blocks: MaskedBlocks) -> None:
        """Add a share to the sum.

        Raises:
            ProtocolError: it is not a share of this size; nothing was added.
        """
        self._total.add(blocks)
        self.missing -= 1

    @property
    def noise_variance(self) -> float:
        """Variance of the noise in one coordinate of the mean."""
        return (self._deviation / self.units) ** 2

    def take(self) -> Privatised[Vector]:
        """Return the mean, float32 (P,), once no share is missing.

        Raises:
            ProtocolError: the sum is larger than clipped vectors and noise can be, so a site lied.
        """
        assert not self.missing
        step, square = self._grid.step, 0.0
        mean = np.empty(self.size, dtype=np.float32)
        for place, whole in self._total.signed_blocks():
            exact = whole * step
            square += float(np.square(exact).sum())
            mean[place] = exact / self.units
        # An L2 norm that the sum of honest sites exceeds less than once in 10⁸ rounds.
        units = self.units + 6 * math.sqrt(self.units) + 6
        noise = self._deviation * (math.sqrt(self.size) + 6)
        largest = 1.05 * (self._clip_norm * units + noise)
        if square > largest**2:
            raise ProtocolError("The sum is larger than clipped vectors and noise can be.")
        return aggregated(mean)


def bits_for(units: float, grid: SharedGrid, members: int) -> Bits:
    """Return how many bits, 16 or 32, hold a sum of shares of any set of at most `members` sites.

    2^(bits−1) > B·C/Γ + 9·r·σC/Γ + N. B bounds the units in all batches together, except with a
    chance of 1e-12 (Bernstein's inequality). r² = |U|/k is largest for a set of t + 1 sites, where
    it is N − shares + 1 = t + 1. N is what rounding adds.

    Args:
        units: units expected in all batches together, q·Σn_i.
        members: N, the most sites of a set.

    Raises:
        AccountingError: there are fewer members than shares, or 32 bits are too few.

    Privacy:
        All of this is public. Sums are taken modulo 2^bits. A sum that does not fit is wrong, but
        just as private.
    """
    if not members >= grid.shares or not 0 <= units < math.inf:
        raise AccountingError(
            f"Expected members={members} >= shares={grid.shares} and units={units:g} >= 0."
        )
    most = units + _RARE / 3 + math.sqrt((_RARE / 3) ** 2 + 2 * _RARE * units)
    noise = 9 * math.sqrt(members - grid.shares + 1) * grid.noise_multiplier
    largest = (most + noise) * grid.clip_norm / grid.step + members
    if largest < 2**15:
        return 16
    if largest < 2**31:
        return 32
    raise AccountingError(
        f"Expected sums of at most 32 bits, not of up to {largest:.3g} steps. Propose a lower"
        " sample_rate, or a smaller epsilon."
    )


def total_deviation(grid: SharedGrid, members: int, max_colluding: int) -> float:
    """Return the standard deviation of each value's noise in a set's sum, in the clip norm's unit.

    The variance is |U|·(σ²C²/k + Γ²/12), from the noise of the shares and the rounding of each.

    Args:
        members: |U|, how many sites are in the set.
        max_colluding: t.
    """
    noise = (grid.noise_multiplier * grid.clip_norm) ** 2 / shares_of(members, max_colluding)
    return math.sqrt(members * (noise + grid.step**2 / 12))
