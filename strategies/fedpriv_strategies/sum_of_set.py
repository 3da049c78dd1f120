"""The secure sum of a set of sites: from their masked shares to one gradient, and its size."""

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

_RARE = math.log(1e12)  # a batch is larger than its bound once in so many sums


class SumOfSet:
    """ĝ = Σ S̃ᵢ / Σ q nᵢ over a set: DP-SGD on its pooled records, with noise of its own size.

    Args:
        size: P, of the vector.
        members: |U|.
        units: Σ q nᵢ, that are expected in the sum; never the realised batch.
        bits: of a value; by default as many as such a sum needs.

    Attributes:
        missing: shares that were not added yet.

    Privacy:
        A share says nothing; what `take` gives is privatised by what all sites of the set added,
        if at most `max_colluding` of them did not.
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
        """Of the values of a share as it travels."""
        return self.size * self.bits // 8

    def add(self, blocks: MaskedBlocks) -> None:
        """Count a share in.

        Raises:
            ProtocolError: it is none, of this size; nothing was added.
        """
        self._total.add(blocks)
        self.missing -= 1

    @property
    def noise_variance(self) -> float:
        """Of a coordinate of the mean."""
        return (self._deviation / self.units) ** 2

    def take(self) -> Privatised[Vector]:
        """Return the mean, float32 (P,), once no share is missing.

        Raises:
            ProtocolError: the sum is larger than clipped vectors and noise can be: a site lied.
        """
        assert not self.missing
        step, square = self._grid.step, 0.0
        mean = np.empty(self.size, dtype=np.float32)
        for place, whole in self._total.signed_blocks():
            exact = whole * step
            square += float(np.square(exact).sum())
            mean[place] = exact / self.units
        # The L2 norm that honest sites' sum exceeds less than once in 10⁸ rounds.
        units = self.units + 6 * math.sqrt(self.units) + 6
        noise = self._deviation * (math.sqrt(self.size) + 6)
        largest = 1.05 * (self._clip_norm * units + noise)
        if square > largest**2:
            raise ProtocolError("The sum is larger than clipped vectors and noise can be.")
        return aggregated(mean)


def bits_for(units: float, grid: SharedGrid, members: int) -> Bits:
    """Return the bits, 16 or 32, that fit a sum of shares of any set of at most `members` sites.

    2^(bits−1) > B·C/Γ + 9·r·σC/Γ + N: B bounds the units in all batches together, except with a
    chance of 1e-12 (Bernstein's inequality); r² = |U|/k is largest, N − shares + 1 = t + 1, for a
    set of t + 1 sites; N is what rounding adds.

    Args:
        units: expected in all batches together, q·Σn_i.
        members: N.

    Raises:
        AccountingError: fewer members than shares; or 32 bits are too few.

    Privacy:
        Public. Sums are taken modulo 2^bits: one that does not fit is wrong, and as private.
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
    """Return the deviation of the noise in each value of a set's sum, in the unit of the clip norm.

    The variance is |U|·(σ²C²/k + Γ²/12): that of the shares, and of the rounding of each.

    Args:
        members: |U|.
        max_colluding: t.
    """
    noise = (grid.noise_multiplier * grid.clip_norm) ** 2 / shares_of(members, max_colluding)
    return math.sqrt(members * (noise + grid.step**2 / 12))
