"""Gaussian noise from secret random bits, rounded to integers without error."""

from __future__ import annotations

import math
import threading
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from fedpriv.errors import AccountingError

if TYPE_CHECKING:
    from fedpriv.privacy.mechanism.csprng import RandomSource

_WORDS = 2**15  # integers at a time: the working arrays stay in cache, below 2 MB

Z_ERROR = 2.0**-46  # bound on the float64 error of z and of s·z, as a share of 1 + z
MAX_DEVIATION = 2.0**50
# ln of the total variation distance of one rounded number from the ideal: 2^-65472. δ grows by
# e^ε times as much, and in a sum of a thousand sites ε is some 27,000 for one that trusts nobody.
LOG_SAMPLER_ERROR = -65472 * math.log(2)
_BITS = 65_535  # bits of a uniform, after which an undecided comparison is left undecided
# Bits of a comparison beyond those of the uniform that are not leading zeros. Half of them would do
# if mpmath's erfc did not lose some 60 near 151, where its two series meet at so many bits.
_GUARD = 128
_MARGIN = 2.0**-40  # share of its last bit: far above what the guard leaves of rounding
_TAIL = np.uint64(2**63 - 1)
_MPMATH = threading.Lock()  # its cached constants are not safe to share between threads


def rounded_gaussian(n: int, deviation: float, csprng: RandomSource) -> npt.NDArray[np.int64]:
    """Draw `n` independent copies of round(Y), real Y ~ N(0, deviation²), without rounding error.

    A word of 64 bits is a sign and the first 63 bits of a uniform t, the two-sided tail chance
    of |Y|: |Y| = −deviation·Φ⁻¹(t/2). Float64 gives |Y| with an error bounded by Z_ERROR, plus
    what the bits not yet drawn may change. Where that leaves the nearest integer uncertain, more
    bits are drawn and t is compared with the tail chance of the half-integer between the
    candidates, with bits to spare, until it is certain.

    Args:
        n: how many, >= 0.
        deviation: s, standard deviation in integer steps, in (0, 2^50].
        csprng: where the uniform words come from: one for each number, and rarely more.

    Returns:
        (n,) int64.

    Raises:
        AccountingError: for a negative `n` or a `deviation` outside (0, 2^50].

    Formal guarantees:
        With uniform words, each number is within 2^-65472 (LOG_SAMPLER_ERROR) of round(Y) in total
        variation. A comparison at b bits of t, of which the first b − m are 0, is in arithmetic
        of m + 128 bits at least. A chance below 2^(m+1) of the last bit is off by less than 2^-44
        of it, as the argument errs by three roundings, erfc makes less than 2^17 times as much of
        each, and mpmath's loses 60 bits at most; a larger one is above t in any case. It is taken
        only where 2^-40 of a bit are clear. So none is decided wrongly, and 65535 bits leave one
        undecided with chance below 2^-65475 (fewer than 2^59 half-integers, each in two intervals
        of 2^-65535 at most). This rests on Z_ERROR, some ten times what scipy's `ndtri` and the
        roundings around it are measured to err, and on mpmath.

    Source:
        That the low bits of noise computed in floating point tell what it was added to: Mironov
        2012, "On Significance of the Least Significant Bits for Differential Privacy".

    Privacy:
        Reads no data. S + round(Y) = round(S + Y) for an integer S, so an integer sum with this
        noise is post-processing of the ideal Gaussian mechanism, to the last bit.
        `log_sampler_delta` says what the sampler's error adds to δ. That the words are uniform is
        the assumption of the keystream, as for any noise. The numbers are secret until a sum hides
        in them.
    """
    if n != int(n) or n < 0:
        raise AccountingError(f"Expected n={n!r} to be an integer >= 0.")
    if not 0 < deviation <= MAX_DEVIATION:
        raise AccountingError(f"Expected deviation={deviation!r} in (0, {MAX_DEVIATION:g}].")
    out = np.empty(n, dtype=np.int64)
    for start in range(0, n, _WORDS):
        part = out[start : start + _WORDS]
        words = csprng.uint64(part.size)
        for place, tail, low, high in _magnitudes(words, deviation, part):
            part[place] = _resolve(tail, low, high, deviation, csprng)
        signs = words.view(np.int64) >> 63  # 0 or −1; two's complement: −x = (x ^ −1) − −1
        part ^= signs
        part -= signs
    return out


def _magnitudes(
    words: npt.NDArray[np.uint64], deviation: float, out: npt.NDArray[np.int64]
) -> list[tuple[int, int, int, int]]:
    """Write |Y|, rounded, for each word. Return where that is not certain.

    Returns:
        The places whose bits leave |Y| to be rounded to one of several: place, t without the bits
        not drawn, and the least and greatest of these.
    """
    tails = words & _TAIL  # t is in [tails, tails + 1) · 2^-63
    middles = tails + 0.5
    z = -ndtri(middles * 2.0**-64)
    y = deviation * z
    nearest = np.rint(y)
    out[:] = nearest
    room = 0.5 - np.abs(y - nearest)
    # The bound falls with t, so that of the least t holds for all and is looked at first.
    seldom = np.flatnonzero(room <= _bound(deviation, z.max(), middles.min()))
    error = _bound(deviation, z[seldom], middles[seldom])
    doubt = room[seldom] <= error
    return [
        (i, int(tails[i]), max(round(y[i] - e), 0), round(y[i] + e))
        for i, e in zip(seldom[doubt].tolist(), error[doubt].tolist(), strict=True)
    ]


def _bound(deviation: float, z: Any, middles: Any) -> Any:
    """Bound by how much |Y| may differ from its float64 value."""
    # Φ⁻¹ moves by at most 1.26 for each unit of ln t. With t below 2^-63, |Y| may be as large
    # as that of t = 2^-65535, which is 301.4 deviations: z is 9.16 there, and 147 / ½ more.
    return deviation * (Z_ERROR * (1 + z) + 147 / middles)


def log_sampler_delta(values: int, epsilon: float) -> float:
    """Return ln of what the error of `rounded_gaussian` adds to δ of an (ε, δ)-DP mechanism.

    All of what is released is within values · 2^-65472 of the ideal mechanism in total variation,
    on either of two neighbouring populations, so δ grows by (1 + e^ε) times that: 10⁸ values in
    each of 10⁵ steps add less than 10⁻³⁰⁰ at any ε up to 40,000, which no float64 can tell from
    nothing.
    """
    return float(np.logaddexp(0.0, epsilon)) + math.log(values) + LOG_SAMPLER_ERROR


def _resolve(tail: int, low: int, high: int, deviation: float, csprng: RandomSource) -> int:
    """Return round(|Y|), one of `low` … `high`, for a uniform t in [tail, tail + 1) · 2^-63."""
    bits = 63
    while low < high:
        k = (low + high) // 2
        over = _tail_chance(k, deviation, bits, tail.bit_length()) - tail
        if over >= 1 + _MARGIN:  # t < P(|Y| > k + ½)
            low = k + 1
        elif over <= -_MARGIN:
            high = k
        elif bits < _BITS:  # draw as many again, so that few comparisons are at many bits
            for word in csprng.uint64((bits + 1) // 64):
                tail, bits = tail << 64 | int(word), bits + 64
        else:
            break
    return low


def _tail_chance(k: int, deviation: float, bits: int, significant: int) -> Any:
    """Return 2^bits · P(|Y| > k + ½), to `significant` bits and those that guard them."""
    with _MPMATH:
        mp = _context(-(-significant // 64) * 64 + _GUARD)
        return mp.ldexp(mp.erfc((k + mp.mpf(0.5)) / (deviation * mp.sqrt(2))), bits)


@cache
def _context(precision: int) -> Any:
    import mpmath

    context = mpmath.MPContext()
    context.prec = precision
    return context
