"""Secret Poisson sampling: who is in a step, decided by a coin for each unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpriv.errors import AccountingError

if TYPE_CHECKING:
    from fedpriv.privacy.mechanism.csprng import RandomSource

_CHUNK = 2**20  # units at a time: 8 MB of words


def poisson_sample(
    population: int, sample_rate: float, csprng: RandomSource
) -> npt.NDArray[np.int64]:
    """Draw the indices of the units in one step: each is in independently with probability q.

    A unit is in when its 64-bit uniform word is below floor(q·2^64), which is exact for q = 1
    (everyone, every time) and for every q that is a multiple of 2^-64; otherwise its chance
    is below q by less than 2^-64. Shuffled epochs and batches of fixed size are other
    mechanisms with a far higher cost, and are not offered.

    Args:
        population: number of units, >= 0.
        sample_rate: q in (0, 1].
        csprng: where the words come from.

    Returns:
        Sorted indices in [0, population), (k,) int64; k is random and may be 0.

    Raises:
        AccountingError: for a negative population or a sample_rate outside (0, 1].

    Source:
        Poisson sampling as assumed by Mironov, Talwar and Zhang 2019, section 3.

    Privacy:
        Reads no data: only how many units there are. Indices and their number are secret and
        must not leave; the amplification that an `Event` credits rests on it. A chance below q
        costs no more than q, so the rounding is on the safe side.
    """
    if population != int(population) or population < 0:
        raise AccountingError(f"Expected population={population!r} to be an integer >= 0.")
    if not 0 < sample_rate <= 1:
        raise AccountingError(f"Expected sample_rate={sample_rate!r} in (0, 1].")
    if sample_rate == 1:
        return np.arange(population, dtype=np.int64)
    threshold = np.uint64(int(sample_rate * 2.0**64))  # the product is exact: a power of two
    chosen = [
        start + np.flatnonzero(csprng.uint64(min(_CHUNK, population - start)) < threshold)
        for start in range(0, population, _CHUNK)
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *chosen]).astype(np.int64)
