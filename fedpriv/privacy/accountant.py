"""What a plan of noisy steps costs: the upper bound of ε, and the noise that meets a target.

Numerical composition of privacy loss variables (Gopi, Lee and Wutschitz 2021, "Numerical
Composition of Differential Privacy", arXiv:2106.02848) with the grid, the discretisation and
the conversion of prv-accountant; the Rényi bound beside it, because both are upper bounds and
so the smaller is one too.

Three things differ from that package's `PRVAccountant`:

- The mean of a step's privacy loss is integrated over the mechanism's output, to about 1e-14.
  The package integrates a distribution function adaptively and can miss where it rises. It
  then raises "Discrete mean differs…" or, where the grid is coarse enough, goes on with a mean
  wrong by up to half a cell, once for every step: by 4.7 times eps_error in all at q = 0.157,
  σ = 1.52, 1191 steps (eps_error 0.551). Nothing fixes the sign, so a coarser grid is no way
  out of the error.
- Both directions of add/remove are composed and the larger is reported. Remove, the only one
  the package has, was never below add in any setting measured; that is no theorem. So add is
  bounded on a coarse grid first, and on the fine one only if that doesn't settle it.
- Spectra are multiplied one after another, so memory doesn't grow with distinct steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from prv_accountant import discrete_privacy_random_variable as discrete
from prv_accountant import discretisers, domain
from scipy import fft
from scipy.special import ndtr

from fedpriv.errors import AccountingError
from fedpriv.privacy.rdp import epsilon_from_rdp, rdp

ACCOUNTANT = f"PRV (prv-accountant {version('prv-accountant')}), upper bound, add and remove"

Float = npt.NDArray[np.float64]

_MAX_NODES = 2**20  # of the grid: about 200 MB at the peak
_LOOSENESS = 0.004  # eps_error as a share of a first bound …
_MIN_EPS_ERROR = 0.003  # … and its least value
_EXTENDED = np.finfo(np.longdouble)  # what the package computes in
_MAX_REACH = 0.9 * float(np.log(_EXTENDED.max))  # of the grid, whose exponential is taken
_REACH = 39.0  # standard deviations: beyond them a normal has no mass in float64


@dataclass(frozen=True, order=True)
class Event:
    """`count` steps of the Poisson-subsampled Gaussian mechanism.

    Each step adds N(0, (noise_multiplier · sensitivity)²) to a sum over units that are in it
    independently with probability `sample_rate`.

    Args:
        sample_rate: in (0, 1]; 1 is the Gaussian mechanism on everyone.
        noise_multiplier: standard deviation over sensitivity, >= 0; 0 is a release without noise.
        count: number of steps, >= 0.

    Raises:
        AccountingError: for values outside these ranges.

    Privacy:
        Three public numbers; they pay for a release that is exactly as described.
    """

    sample_rate: float
    noise_multiplier: float
    count: int

    def __post_init__(self) -> None:
        if not 0 < self.sample_rate <= 1:
            raise AccountingError(f"Expected sample_rate={self.sample_rate!r} in (0, 1].")
        if not 0 <= self.noise_multiplier < math.inf:
            raise AccountingError(
                f"Expected noise_multiplier={self.noise_multiplier!r} >= 0 and finite."
            )
        if self.count != int(self.count) or self.count < 0:
            raise AccountingError(f"Expected count={self.count!r} to be an integer >= 0.")


def epsilon_upper(events: Sequence[Event], delta: float) -> float:
    """Upper bound of ε at δ for the composition of `events`.

    Args:
        events: what was or will be released, in any order. None of them: ε = 0.
        delta: δ in (0, 1).

    Returns:
        ε >= 0, never NaN: at most about 1% or 0.01 above the true value for plans of up to 10⁵
        steps, and looser beyond, as the grid is bounded. Looser too where only the Rényi bound
        is left: δ too small for the arithmetic (below about 1e-10, or 1e-13 for each step) or
        ε in the thousands. Infinite when an event has no noise, or so little that float64
        would overflow (below 1e-120).

    Raises:
        AccountingError: when δ is outside (0, 1).

    Source:
        Gopi, Lee and Wutschitz 2021, Theorem 5.5 and Remark 5.6; Rényi bound in `rdp`.

    Privacy:
        Reads no data. Holds for add/remove of one unit when the events are fixed before the
        first release, sampled by secret Poisson sampling, and noised independently.
    """
    if not 0 < delta < 1:
        raise AccountingError(f"Expected delta={delta!r} in (0, 1).")
    return _epsilon(_canonical(events), float(delta))


def calibrate_noise(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The least noise multiplier with which `steps` equal steps cost at most ε.

    Args:
        epsilon: target ε > 0.
        delta: target δ in (0, 1).
        sample_rate: probability in (0, 1] with which a unit is in a step.
        steps: number of steps, >= 1.

    Returns:
        A noise multiplier rounded up to four significant digits, for which `epsilon_upper`
        is at most `epsilon` and, for targets above about 0.05, at least 99.5% of it.

    Raises:
        AccountingError: for arguments outside these ranges, or when no noise multiplier up to
            10⁶ meets the target.

    Source:
        Secant and bisection steps on the upper bound, bracketed by the Rényi bound.

    Privacy:
        Reads no data; the result is public and on the safe side of the target.
    """
    if not 0 < epsilon < math.inf:
        raise AccountingError(f"Expected epsilon={epsilon!r} > 0 and finite.")
    if steps != int(steps) or steps < 1:
        raise AccountingError(f"Expected steps={steps!r} to be an integer >= 1.")

    def cost(noise_multiplier: float) -> float:
        return epsilon_upper([Event(sample_rate, noise_multiplier, steps)], delta)

    def rdp_cost(noise_multiplier: float) -> float:
        return epsilon_from_rdp(rdp(sample_rate, noise_multiplier) * steps, delta)[0]

    Event(sample_rate, 1.0, steps)  # refuses a bad sample_rate before the search
    low, high = 1e-3, 1e6
    if rdp_cost(high) > epsilon:
        raise AccountingError(
            f"Expected epsilon={epsilon!r} to be reachable with delta={delta!r}, "
            f"sample_rate={sample_rate!r} and steps={steps!r}: even noise_multiplier={high:g} "
            "costs more. Allow a larger epsilon or delta, or plan fewer steps."
        )
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if rdp_cost(middle) <= epsilon else (middle, high)
    low, ratio = high, 1.05
    while (at_low := cost(low)) <= epsilon and low > 1e-3:
        high, low, ratio = low, low / ratio, ratio**2
    if at_low <= epsilon:
        high = low
    while high / low > 1.0002 and (at_high := cost(high)) < 0.998 * epsilon:
        share = 0.5
        if at_high > 0:  # where the secant, in logarithms, meets 99.9% of the target
            share = math.log(at_high / (0.999 * epsilon)) / math.log(at_high / at_low)
        guess = high * (low / high) ** min(max(share, 0.1), 0.9)
        at_guess = cost(guess)
        if at_guess <= epsilon:
            high = guess
        else:
            low, at_low = guess, at_guess
    result = _round_up(high)
    while cost(result) > epsilon:  # the grid may jitter by a part in a thousand
        result = _round_up(result * 1.0005)
    return result


def _round_up(value: float) -> float:
    digits = 3 - math.floor(math.log10(value))
    return float(round(math.ceil(value * 10**digits * (1 - 1e-12)) / 10**digits, max(digits, 0)))


def _canonical(events: Sequence[Event]) -> tuple[Event, ...]:
    """Equal steps merged and sorted; all Gaussians without subsampling made into one."""
    counts: dict[tuple[float, float], int] = {}
    for event in events:
        key = float(event.sample_rate), float(event.noise_multiplier)
        counts[key] = counts.get(key, 0) + int(event.count)
    merged = sorted(Event(q, sigma, count) for (q, sigma), count in counts.items() if count)
    full = [event for event in merged if event.sample_rate == 1]
    if not full or any(event.noise_multiplier < 1e-100 for event in full):
        return tuple(merged)
    precision = math.fsum(event.count / event.noise_multiplier**2 for event in full)
    rest = tuple(event for event in merged if event.sample_rate < 1)
    return (*rest, Event(1.0, 1 / math.sqrt(precision), 1))


@lru_cache(maxsize=4096)
def _epsilon(events: tuple[Event, ...], delta: float) -> float:
    if not events:
        return 0.0
    bound = _rdp_epsilon(events, delta)
    if bound == 0 or not math.isfinite(bound):
        return bound
    scale = bound
    remove = _composed(events, delta, scale, add=False)
    if remove < 0.5 * scale and scale > 2:  # then the grid was coarser than promised
        scale = remove
        remove = min(remove, _composed(events, delta, scale, add=False))
    if all(event.sample_rate == 1 for event in events):
        return min(bound, remove)  # symmetric
    add = _composed(events, delta, scale, add=True, coarser=8)
    if add > remove:
        add = _composed(events, delta, scale, add=True)
    return min(bound, max(remove, add))


def _composed(
    events: tuple[Event, ...], delta: float, scale: float, *, add: bool, coarser: int = 1
) -> float:
    """Upper bound in one direction; infinite where the grid can't give one."""
    grid, eps_error, delta_error = _grid(events, delta, scale, coarser)
    # Rounding of the losses' distributions (their Kolmogorov distances add up) and transforms.
    rounding = 1e-15 * sum(event.count for event in events) + 10 * _EXTENDED.eps * len(grid)
    if eps_error > scale or grid.t_max() > _MAX_REACH or rounding > delta / 100:
        return math.inf
    try:
        loss = _compose(events, grid, add=add)
        epsilon = loss.compute_epsilon(float(delta - rounding), delta_error, eps_error)[2]
    except (RuntimeError, ValueError, IndexError):  # how the package says that it can't
        return math.inf
    return max(epsilon, 0.0) if math.isfinite(epsilon) else math.inf


def _rdp_epsilon(events: tuple[Event, ...], delta: float) -> float:
    curve = sum(rdp(event.sample_rate, event.noise_multiplier) * event.count for event in events)
    return epsilon_from_rdp(np.asarray(curve), delta)[0]


def _grid(
    events: tuple[Event, ...], delta: float, scale: float, coarser: int
) -> tuple[Any, float, float]:
    """The grid of Theorem 5.5 and its two errors, as wide as Remark 5.6; `scale` is about ε."""
    total = sum(event.count for event in events)
    eps_error = max(_LOOSENESS * scale, _MIN_EPS_ERROR)
    delta_error = delta / 1000
    single = [Event(event.sample_rate, event.noise_multiplier, 1) for event in events]
    reach = max(
        eps_error,
        _rdp_epsilon(events, delta_error / 4),
        *(_rdp_epsilon((event,), delta_error / 8 / total) for event in single),
    )
    cells_per_eps_error = math.sqrt(total / 2 * math.log(12 / delta_error))
    nodes = min(2 * (reach + 3) * cells_per_eps_error / eps_error, _MAX_NODES) / coarser
    half = fft.next_fast_len(math.ceil(nodes / 2) + 8, real=True)
    step = (reach + 3) / (half - 1)
    return (
        domain.Domain(-(half - 1) * step, half * step, 2 * half),
        step * cells_per_eps_error,
        delta_error,
    )


def _compose(events: tuple[Event, ...], grid: Any, *, add: bool) -> Any:
    """Circular convolution of the discretised privacy losses of all steps."""
    spectrum: Any = 1.0
    shift = 0.0
    total = sum(event.count for event in events)
    for event in events:
        loss = _TruncatedLoss(event.sample_rate, event.noise_multiplier, grid, add=add)
        step = discretisers.CellCentred().discretise(loss, grid)
        spectrum = spectrum * _power(fft.rfft(step.pmf.astype(np.longdouble)), event.count)
        shift += float(step.domain.shifts()) * event.count
    masses = np.roll(fft.irfft(spectrum, len(grid)), -(total - 1) * (len(grid) // 2 - 1))
    return discrete.DiscretePrivacyRandomVariable(masses, grid.shift_right(shift))


def _power(base: Any, count: int) -> Any:
    """By squaring: a tenth of the time of numpy's complex power."""
    result: Any = 1.0
    while count:
        if count & 1:
            result = result * base
        count >>= 1
        if count:
            base = base * base
    return result


class _TruncatedLoss:
    """Privacy loss of one step, conditioned on the grid: what the package's discretiser takes.

    The output x is N(0, σ²) without the unit and (1−q)N(0, σ²) + qN(1, σ²) with it; their log
    ratio ℓ(x) = log(1 − q + q exp((2x−1)/2σ²)) is increasing. Remove: ℓ(x) with the unit;
    add: −ℓ(x) without it.
    """

    pm_inf = 0.0

    def __init__(self, q: float, sigma: float, grid: Any, *, add: bool) -> None:
        self.q, self.sigma, self.add = q, sigma, add
        self.t_min, self.t_max = float(grid.t_min()), float(grid.t_max())
        self.mass = float(self._masses(np.array([self.t_min, self.t_max]))[0])

    def probability(self, lower: Any, upper: Any) -> Float:
        """Masses of adjacent cells (each `upper` is the next `lower`)."""
        edges = np.append(lower, upper[-1:]).astype(np.float64)
        return self._masses(np.clip(edges, self.t_min, self.t_max)) / self.mass

    def mean(self) -> float:
        """Gauss–Legendre over the output x, in panels far narrower than the bend of ℓ."""
        ends = np.array([-self.t_max, -self.t_min] if self.add else [self.t_min, self.t_max])
        first, last = self._output(ends)
        first = max(first, -_REACH * self.sigma)
        last = min(last, _REACH * self.sigma + (0.0 if self.add else 1.0))
        nodes, weights = np.polynomial.legendre.leggauss(16)
        edges = np.linspace(first, last, 2001)
        half = np.diff(edges)[:, None] / 2
        x = edges[:-1, None] + half * (1 + nodes)
        density = np.exp(-(x**2) / 2 / self.sigma**2)
        if not self.add:
            shifted = np.exp(-((x - 1) ** 2) / 2 / self.sigma**2)
            density = (1 - self.q) * density + self.q * shifted
        mass = half * weights * density
        mean = float((self._log_ratio(x) * mass).sum() / mass.sum())
        return -mean if self.add else mean

    def _masses(self, edges: Float) -> Float:
        """Differences of whichever tail is small, so that both tails keep their digits."""
        if self.add:
            below = ndtr(-self._output(-edges) / self.sigma)
            above = ndtr(self._output(-edges) / self.sigma)
        else:
            z = self._output(edges) / self.sigma
            mu = 1 / self.sigma
            below = (1 - self.q) * ndtr(z) + self.q * ndtr(z - mu)
            above = (1 - self.q) * ndtr(-z) + self.q * ndtr(mu - z)
        masses: Float = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
        return masses

    def _log_ratio(self, x: Float) -> Float:
        exponent = (2 * x - 1) / 2 / self.sigma**2
        if self.q == 1:
            return exponent
        ratio: Float = np.logaddexp(np.log1p(-self.q), np.log(self.q) + exponent)
        return ratio

    def _output(self, loss: Float) -> Float:
        """The x at which the log ratio is `loss`: −∞ below its infimum log(1 − q)."""
        if self.q == 1:
            return self.sigma**2 * loss + 0.5
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            near = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / self.q, -1.0))
            far = loss + np.log1p((self.q - 1) * np.exp(-np.maximum(loss, 1.0))) - np.log(self.q)
            output: Float = self.sigma**2 * np.where(loss < 1, near, far) + 0.5
        return output
