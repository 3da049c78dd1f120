"""Compose privacy losses step by step: the ε that steps have cost so far.

Numerical composition of privacy loss random variables (PRVs) by fast Fourier transform, after
Koskela, Jälkö and Honkela 2020 and Gopi, Lee and Wutschitz 2021 ("Numerical Composition of
Differential Privacy", arXiv:2106.02848). What differs makes the result an upper bound for
every grid, with each source of error added to δ and none assumed away:

- *Discretisation.* The mass of a cell is put on its two ends so that both P and Q keep theirs
  ("Connect the Dots", Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022, arXiv:2207.04380).
  The discrete pair dominates the continuous one, so a coarse grid costs tightness, not truth,
  and T steps cost about T(2λ+1)h²/12 of ε for a cell width h: it falls with h², where rounding
  needs h√T small. Loss beyond the last cell is taken for infinite.
- *Wrap-around.* A circular convolution on [0, W) adds to each mass what lies a multiple of W
  away. What falls in from below 0 is counted too high: safe. What is above W may be counted
  too low; it is at most E[exp(λS)]·exp(−λW) (Chernoff), computed from the discrete losses
  themselves, and added to δ. W is chosen to make that δ·1e-5.
- *Rounding.* Masses are tilted by exp(λℓ), half as much as large deviations suggest, so that ε
  is found near the middle of what is transformed and not 13 digits below it, and yet little
  of what is transformed lies above W. Each step's largest mass is moved to 0, exactly, and kept
  out of the transform, so that rounding grows with what a step spreads and not with the number
  of steps. Its bound (in L2, as a transform's error is known: Higham 2002, Theorem 24.2) is
  added to δ. Where that is felt, the transforms are done in long double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtri

from fedpriv.privacy.accounting.privacy_loss import Float, SubsampledGaussian

Spectrum = npt.NDArray[np.complexfloating[Any, Any]]
Step = tuple[SubsampledGaussian, int]

_LOOSENESS = 0.001  # share of a first bound of ε that the cells may add to it
_MIN_NODES, _MAX_NODES = 1024, 2**17
_SHARE = 1e-5  # share of δ for what is cut off: for each tail, and for the window's top
_ORDERS = 0.01 * np.sqrt(2.0) ** np.arange(50)  # among which the tilt λ is chosen
_ULPS = 8  # rounding for each halving of a transform, and for each cell of a step
_UNDERFLOW = 1e-290  # masses below it are parts of a tail that float64 cuts off
_WIDEST = 100.0  # width of a cell, beyond which a grid makes no sense
_CACHED = 2**22  # nodes of spectra that are kept: 64 MB


class Composition:
    """Compute ε of steps as they are taken, on one grid that is chosen for a plan of them.

    Memory is a few vectors of the grid's length, whatever the number of steps.

    Args:
        plan: the steps that may be taken, with their counts. Others may be added too: the
            result stays an upper bound, and may be looser.
        delta: δ in (0, 1).

    Privacy:
        Reads no data. The bound holds for the steps added, if it was fixed before the first of them
        which ones they are.
    """

    def __init__(self, plan: Sequence[Step], delta: float) -> None:
        self._delta = delta
        steps = max(1, sum(count for _, count in plan))
        self._reach = -float(ndtri(max(_SHARE * delta / steps, 1e-300)))
        curve = sum(
            (count * pair.log_moments(_ORDERS, self._reach) for pair, count in plan),
            np.zeros(len(_ORDERS)),
        )
        bounds = (curve - math.log(delta)) / _ORDERS  # Chernoff's, of ε
        best = 2 + int(np.argmin(bounds[2:]))
        order, bound = float(_ORDERS[best]), float(bounds[best])
        self._tilt = order / 2
        self._width = 2 * (bound - math.log(_SHARE) / order)

        def compose(dtype: type[np.floating[Any]], tolerance: float) -> float:
            cell = math.sqrt(12 * _LOOSENESS * tolerance / steps / (order + 1))
            nodes = min(max(math.ceil(self._width / cell), _MIN_NODES), _MAX_NODES)
            self._nodes = _fast_length(nodes)
            self._cell = self._width / self._nodes
            self._dtype = dtype
            self._cache: dict[SubsampledGaussian, tuple[_Tilted, _Tilted]] = {}
            self._restart()
            for pair, count in plan:
                self.add(pair, count)
            return self.epsilon()

        tolerance = bound
        epsilon = compose(np.float64, tolerance)
        if epsilon < bound / 4:
            tolerance = max(epsilon, bound / 1000)
            epsilon = compose(np.float64, tolerance)
        if self._rounding_shows(epsilon):
            compose(np.longdouble, tolerance)
        self._restart()

    def _restart(self) -> None:
        self._steps = 0
        self._directions = (_Sum(), _Sum())  # remove, add

    def _rounding_shows(self, epsilon: float) -> bool:
        """Tell whether the allowance for rounding is a share of δ that matters."""
        return math.isinf(epsilon) or any(
            self._allowance(total.spread, total.log_moment, epsilon) > 1e-3 * self._delta
            for total in self._directions
        )

    def add(self, pair: SubsampledGaussian, count: int = 1) -> None:
        """Add `count` further steps of one kind."""
        tilted = self._cache.get(pair)
        if tilted is None:
            tilted = self._discretise(pair)
            if len(self._cache) * self._nodes < _CACHED:
                self._cache[pair] = tilted
        for direction, loss in zip(self._directions, tilted, strict=True):
            direction.add(loss, count)
        self._steps += count

    def epsilon(self) -> float:
        """Return an upper bound of ε at δ of the added events, the larger of remove and add.

        It is infinite where the grid can't give a bound: δ is below what is cut off.
        """
        if not self._steps:
            return 0.0
        return max(self._epsilon(direction) for direction in self._directions)

    def _epsilon(self, total: _Sum) -> float:
        h, tilt, log_moment = self._cell, self._tilt, total.log_moment
        lost = math.exp(min(0.0, log_moment - tilt * self._nodes * h))
        target = self._delta - total.infinite - lost
        if not target > 0:
            return math.inf
        masses = np.fft.irfft(np.exp(total.log_spectrum), self._nodes).astype(np.float64)
        masses = np.roll(masses, total.shift)
        losses = h * np.arange(self._nodes)
        seen = log_moment - tilt * losses < 600  # beyond, exp overflows
        losses, masses = losses[seen], np.maximum(masses[seen], 0.0)
        untilted = masses * np.exp(log_moment - tilt * losses)
        # δ(ε) = Σ_{s ≥ ε} w(s) (1 − exp(ε − s)) at each node, from the top down
        weights = np.cumsum(untilted[::-1])[::-1]
        discounted = _discounted(untilted, h)
        allowed = self._allowance(total.spread, log_moment, losses)
        enough = weights - discounted + allowed <= target
        if not enough[-1]:
            return math.inf
        node = int(np.argmax(enough))
        if node == 0:
            return float(losses[0])
        left = weights[node] + allowed[node - 1] - target
        if left <= 0:
            return float(losses[node - 1])
        between = math.log(left / max(float(discounted[node]), 1e-300))
        return float(losses[node]) + min(max(between, -h), 0.0)

    def _allowance(self, spread: float, log_moment: float, losses: Any) -> Any:
        """Return what rounding may take from δ at each ε of `losses`: L2 error times L2 weights."""
        unit = float(np.finfo(self._dtype).eps)
        error = _ULPS * unit * math.log2(self._nodes) * (spread + 1)
        norm = math.sqrt(-math.expm1(-2 * self._tilt * self._cell))
        return error / norm * np.exp(np.minimum(log_moment - self._tilt * losses, 700.0))

    def _discretise(self, pair: SubsampledGaussian) -> tuple[_Tilted, _Tilted]:
        if self._cell > _WIDEST:
            return _UNBOUNDED, _UNBOUNDED
        low, high = pair.span(self._reach)
        first = max(math.floor(low / self._cell), -self._nodes)
        last = min(math.ceil(high / self._cell), self._nodes)
        nodes = np.arange(first, last + 1)
        p, q = pair.masses(np.float64(self._cell) * nodes)
        return self._connect(nodes, p, q), self._connect(-nodes[::-1], q[::-1], p[::-1])

    def _connect(self, nodes: npt.NDArray[np.int64], p: Float, q: Float) -> _Tilted:
        """Connect the dots between `nodes`; P's mass above the last is partly infinite loss.

        A cell's two masses a and b satisfy a + b = p and a e^(−low) + b e^(−high) = q. Where q
        is lost to underflow, all of p goes to the upper end.
        """
        losses = nodes * self._cell
        q = np.where(q < _UNDERFLOW, 0.0, q)
        with np.errstate(divide="ignore", over="ignore"):
            lower = (np.exp(np.log(q[1:-1]) + losses[1:]) - p[1:-1]) / math.expm1(self._cell)
            last = min(float(np.exp(np.log(q[-1]) + losses[-1])), float(p[-1]))
        lower = np.clip(lower, 0.0, p[1:-1])
        masses = np.zeros(len(nodes))
        masses[:-1] += lower
        masses[1:] += p[1:-1] - lower
        masses[0] += p[0]
        masses[-1] += last
        with np.errstate(divide="ignore"):
            tilted = np.log(masses) + self._tilt * losses
        log_moment = float(logsumexp(tilted))
        shares: Float = np.exp(tilted - log_moment)
        window = np.bincount(nodes % self._nodes, shares, self._nodes).astype(np.float64)
        log_moment += _ULPS * 2.0**-52 * len(nodes) * (1 + self._tilt)  # rounding of the masses
        return _Tilted(window.astype(self._dtype), log_moment, float(p[-1]) - last)


class _Tilted:
    """The discrete loss of one step in one direction, tilted by exp(λℓ).

    Its largest mass lies at node `shift`; `spread` is the mass elsewhere.
    """

    def __init__(self, window: Any, log_moment: float, infinite: float) -> None:
        self.log_moment, self.infinite = log_moment, infinite
        self.shift = int(np.argmax(window))
        largest = window[self.shift]
        rest = np.roll(window, -self.shift)
        rest[0] = 0.0
        self.spread = float(rest.sum())
        ratio = np.fft.rfft(rest) / largest
        x, y = ratio.real, ratio.imag  # log(1 + x + iy), with its digits near 0 and near −1
        with np.errstate(divide="ignore"):
            size = np.where(
                np.hypot(x, y) < 0.5,
                np.log1p(np.maximum(x * (2 + x) + y * y, -1.0)) / 2,
                np.log(np.hypot(1 + x, y)),
            )
        size = np.log(largest) + np.maximum(size, -600.0)
        self.log_spectrum: Spectrum = size + 1j * np.arctan2(y, 1 + x)


_UNBOUNDED = _Tilted(np.ones(1), 0.0, 1.0)


class _Sum:
    """Steps composed in one direction: log spectra and log moments add, and so does the rest."""

    def __init__(self) -> None:
        self.log_spectrum: Spectrum = np.zeros(1, dtype=np.complex128)
        self.shift = 0
        self.log_moment = self.infinite = self.spread = 0.0

    def add(self, loss: _Tilted, count: int) -> None:
        self.log_spectrum = self.log_spectrum + count * loss.log_spectrum
        self.shift += count * loss.shift
        self.log_moment += count * loss.log_moment
        self.infinite += count * loss.infinite
        self.spread += count * loss.spread


def _fast_length(nodes: int) -> int:
    """Return the least of 2ᵏ, 3·2ᵏ, 5·2ᵏ, 9·2ᵏ and 15·2ᵏ that is at least `nodes`."""
    return min(m << max(0, (-(-nodes // m) - 1).bit_length()) for m in (1, 3, 5, 9, 15))


def _discounted(weights: Float, cell: float) -> Float:
    """Return Σ_{j ≥ i} w_j exp(−(j − i)·cell) for each i, by doubling."""
    total, shift = weights.copy(), 1
    while shift < len(total) and cell * shift < 800:
        total[:-shift] += math.exp(-cell * shift) * total[shift:]
        shift *= 2
    return total
