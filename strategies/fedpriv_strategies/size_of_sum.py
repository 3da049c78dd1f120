"""How large a sum of shares gets, and how much noise is in it."""

from __future__ import annotations

import math

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.shares import shares_of
from fedpriv.privacy.mechanism.noise_share import SharedGrid
from fedpriv.secure_sum.members import Bits

_RARE = math.log(1e12)  # a batch is larger than its bound once in so many sums


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
