"""Rényi differential privacy of the Poisson-subsampled Gaussian mechanism, at integer orders.

It is looser than the numerical accountant, but a closed formula that can't fail. So it brackets a
search, and stands in wherever the other can't be used. And its curves add up, whatever the steps
depend on, which is what a filter needs (`fedpriv.privacy.ledger.rules`). Its bound holds in both
directions: of D(M(X ∪ {x}) ‖ M(X)) and D(M(X) ‖ M(X ∪ {x})) the first is the larger (Mironov,
Talwar and Zhang 2019, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", Theorem 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from fedpriv.errors import AccountingError

Float = npt.NDArray[np.float64]

ORDERS: tuple[int, ...] = (
    *range(2, 64),
    *range(64, 128, 8),
    *range(128, 256, 16),
    *range(256, 513, 32),
)


def rdp(
    sample_rate: float, noise_multiplier: float, orders: Sequence[int] = ORDERS
) -> npt.NDArray[np.float64]:
    """Return the Rényi divergence of one step of the Poisson-subsampled Gaussian mechanism.

    Args:
        sample_rate: probability q in [0, 1] with which a unit is in the sample.
        noise_multiplier: standard deviation σ >= 0 of the noise over the sensitivity.
        orders: integer orders α >= 2.

    Returns:
        ε(α) in nats, one for each order; the curves of composed steps add. Infinite for
        σ < 1e-120.

    Raises:
        AccountingError: for arguments outside these ranges.

    Source:
        Mironov, Talwar and Zhang 2019, section 3.3: with terms
        C(α,k)(1−q)^(α−k) q^k exp((k²−k)/2σ²), (α−1)ε(α) is the log of their sum. Here 1 is
        taken out of the sum before the logarithm, so that small ε keep their digits.

    Privacy:
        Reads no data. The bound is for add/remove of one unit of sensitivity 1.
    """
    if not 0 <= sample_rate <= 1:
        raise AccountingError(f"Expected sample_rate={sample_rate!r} in [0, 1].")
    if not 0 <= noise_multiplier < np.inf:
        raise AccountingError(f"Expected noise_multiplier={noise_multiplier!r} >= 0 and finite.")
    if not all(order >= 2 and order == int(order) for order in orders):
        raise AccountingError(f"Expected orders={tuple(orders)!r} to be integers >= 2.")
    curve = _rdp(float(sample_rate), float(noise_multiplier), tuple(int(a) for a in orders))
    return np.array(curve, dtype=np.float64)


@lru_cache(maxsize=4096)
def _rdp(q: float, sigma: float, orders: tuple[int, ...]) -> tuple[float, ...]:
    if q == 0:
        return (0.0,) * len(orders)
    if sigma < 1e-120:  # its square would overflow the sums
        return (np.inf,) * len(orders)
    if q == 1:
        return tuple(order / (2 * sigma**2) for order in orders)
    log_binomial, k, order, starts = _terms(orders)
    exponent = k * (k - 1) / 2 / sigma**2
    log_expm1 = exponent + np.log(-np.expm1(-exponent))
    terms = log_binomial + k * np.log(q) + (order - k) * np.log1p(-q) + log_expm1
    largest = np.maximum.reduceat(terms, starts)
    sums = np.add.reduceat(np.exp(terms - np.repeat(largest, np.diff([*starts, len(k)]))), starts)
    log_moments = np.logaddexp(0.0, largest + np.log(sums))
    return tuple(float(m) for m in log_moments / (np.array(orders) - 1))


@lru_cache(maxsize=16)
def _terms(orders: tuple[int, ...]) -> tuple[Float, Float, Float, npt.NDArray[np.int64]]:
    """Return log C(α, k), k and α for k = 2…α, order by order, and where each order starts.

    The terms k = 0 and 1 of log E[(dP/dQ)^α] are pure binomial and vanish once 1 is taken out.
    """
    k = np.concatenate([np.arange(2, order + 1, dtype=np.float64) for order in orders])
    order = np.repeat(np.array(orders, dtype=np.float64), [order - 1 for order in orders])
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    starts = np.cumsum([0, *(order - 1 for order in orders[:-1])])
    return log_binomial, k, order, starts


def epsilon_from_rdp(
    curve: npt.NDArray[np.float64], delta: float, orders: Sequence[int] = ORDERS
) -> tuple[float, int]:
    """Return the least ε that a Rényi curve gives at δ, and the order that gives it.

    Args:
        curve: ε(α), one for each order, as `rdp` returns, summed over steps.
        delta: δ in (0, 1).
        orders: the orders of `curve`.

    Returns:
        (ε, order), ε >= 0; infinite where the whole curve is.

    Raises:
        AccountingError: when δ is outside (0, 1) or the curve has another length or a NaN.

    Source:
        ε = ε(α) + log((α−1)/α) − (log δ + log α)/(α−1): Canonne, Kamath and Steinke 2020,
        "The Discrete Gaussian for Differential Privacy", Proposition 12; Balle et al. 2020,
        "Hypothesis Testing Interpretations and Rényi Differential Privacy", Theorem 21. And
        ε = 0 where δ² >= 1 − exp(−ε(α)) (Bretagnolle–Huber: that bounds the total variation).

    Privacy:
        Reads no data.
    """
    if not 0 < delta < 1:
        raise AccountingError(f"Expected delta={delta!r} in (0, 1).")
    if len(curve) != len(orders) or np.isnan(curve).any():
        raise AccountingError(f"Expected curve={curve!r} with a number for each order.")
    alpha = np.asarray(orders, dtype=np.float64)
    epsilon = curve + np.log1p(-1 / alpha) - (np.log(delta) + np.log(alpha)) / (alpha - 1)
    epsilon = np.where(delta**2 + np.expm1(-curve) >= 0, 0.0, np.maximum(epsilon, 0.0))
    best = int(np.argmin(epsilon))
    return float(epsilon[best]), int(orders[best])
