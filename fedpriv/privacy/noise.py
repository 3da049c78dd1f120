"""Standard normal noise in float64 from secret random bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedpriv.errors import AccountingError

if TYPE_CHECKING:
    from fedpriv.privacy.entropy import Entropy

_PAIRS = 2**15  # Box–Muller pairs at a time: the working arrays stay in cache, below 2 MB


def gaussian(n: int, entropy: Entropy, *, draws: int = 4) -> npt.NDArray[np.float64]:
    """`n` independent standard normals.

    Box–Muller from 53-bit uniforms in (0, 1], so the logarithm is always finite and one draw
    is at most 8.58 in magnitude (a normal is beyond that with probability 1e-17). Each number
    is the sum of `draws` such normals divided by √draws.

    Args:
        n: how many, >= 0.
        entropy: where the uniform words come from; two for every pair and draw.
        draws: normals combined into each number, >= 1.

    Returns:
        (n,) float64 of mean 0 and variance 1, to be multiplied by noise_multiplier ·
        sensitivity.

    Raises:
        AccountingError: for a negative `n` or `draws` below 1.

    Source:
        Box and Muller 1958. Combining draws: Holohan and Braghin 2021, "Secure Random Sampling
        in Differential Privacy"; the attack it answers: Mironov 2012, "On Significance of the
        Least Significant Bits for Differential Privacy".

    Privacy:
        Reads no data. Combining draws makes it infeasible to find, from the low bits of a
        released float, which uniforms it came from: a mitigation, not a proof. Floating-point
        noise is an assumption of the claim. The numbers are secret until a sum hides in them.
    """
    if n != int(n) or n < 0:
        raise AccountingError(f"Expected n={n!r} to be an integer >= 0.")
    if draws != int(draws) or draws < 1:
        raise AccountingError(f"Expected draws={draws!r} to be an integer >= 1.")
    out = np.empty(n, dtype=np.float64)
    for start in range(0, n, 2 * _PAIRS):
        part = out[start : start + 2 * _PAIRS]
        part[:] = _combined((part.size + 1) // 2, entropy, draws)[: part.size]
    return out


def _combined(pairs: int, entropy: Entropy, draws: int) -> npt.NDArray[np.float64]:
    total = np.zeros(2 * pairs, dtype=np.float64)
    for _ in range(draws):
        uniform = ((entropy.uint64(2 * pairs) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        radius = np.sqrt(-2 * np.log(uniform[:pairs]))
        angle = 2 * np.pi * uniform[pairs:]
        total[:pairs] += radius * np.cos(angle)
        total[pairs:] += radius * np.sin(angle)
    total /= np.sqrt(draws)
    return total
