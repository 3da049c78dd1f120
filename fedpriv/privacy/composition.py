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
  of what is transformed lies above W. What float64 may take from
  a mass is bounded and added to each: a few units in the last place for each step and each
  halving of the transform, and, of a step's masses (differences of distribution functions), a
  few for each of its cells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.signal import lfilter
from scipy.special import logsumexp, ndtri

from fedpriv.privacy.loss import Float, SubsampledGaussian

Complex = npt.NDArray[np.complex128]
Step = tuple[SubsampledGaussian, int]

_LOOSENESS = 0.001  # of a first bound of ε: what the cells may add to it
_MIN_NODES, _MAX_NODES = 1024, 2**18
_SHARE = 1e-5  # of δ for what is cut off: of each tail, and of the window's top
_ORDERS = np.geomspace(0.02, 2e5, 48)  # among which twice the tilt λ is chosen
_ROUNDING = 8 * 2.0**-53  # relative, for each step and each halving of the transform
_CACHED = 64  # steps whose spectra are kept


class Composition:
    """ε of steps as they are taken, on one grid that is chosen for a plan of them.

    Memory is a few vectors of the grid's length, whatever the number of steps.

    Args:
        plan: the steps that may be taken, with their counts. Others may be added too: the
            result stays an upper bound, and may be looser.
        delta: δ in (0, 1).

    Privacy:
        Reads no data. The bound holds for the steps added, when which ones they are was fixed
        before the first of them.
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
        best = int(np.argmin(bounds))
        order, bound = float(_ORDERS[best]), float(bounds[best])
        self._tilt = order / 2
        width = 2 * (bound - math.log(_SHARE) / order)
        cell = math.sqrt(12 * _LOOSENESS * bound / steps / (order + 1))
        nodes = min(max(math.ceil(width / cell), _MIN_NODES), _MAX_NODES)
        self._nodes = int(fft.next_fast_len(nodes, real=True))
        self._cell = width / self._nodes
        self._steps = 0
        self._directions = (_Sum(), _Sum())  # remove, add
        self._cache: dict[SubsampledGaussian, tuple[_Tilted, _Tilted]] = {}

    def add(self, pair: SubsampledGaussian, count: int = 1) -> None:
        """Take `count` further steps of a kind."""
        tilted = self._cache.get(pair)
        if tilted is None:
            tilted = self._discretise(pair)
            if len(self._cache) < _CACHED:
                self._cache[pair] = tilted
        for direction, loss in zip(self._directions, tilted, strict=True):
            direction.add(loss, count)
        self._steps += count

    def epsilon(self) -> float:
        """Upper bound of ε at δ of what was added, the larger of remove and add.

        Infinite where the grid can't give one: δ below what is cut off.
        """
        if not self._steps:
            return 0.0
        return max(self._epsilon(direction) for direction in self._directions)

    def _epsilon(self, total: _Sum) -> float:
        h, tilt = self._cell, self._tilt
        rounding = _ROUNDING * (self._steps + 1) * math.log2(self._nodes)
        log_moment, top = total.log_moment, self._nodes * h
        target = self._delta - total.infinite - math.exp(min(0.0, log_moment - tilt * top))
        if not target > 0:
            return math.inf
        masses = np.maximum(fft.irfft(total.spectrum, self._nodes), 0.0)
        masses += rounding * float(np.abs(total.spectrum).mean())
        losses = h * np.arange(self._nodes)
        seen = log_moment - tilt * losses < 600  # beyond, exp overflows
        losses, masses = losses[seen], masses[seen]
        untilted = masses * np.exp(log_moment - tilt * losses)
        # δ(ε) = Σ_{s ≥ ε} w(s) (1 − exp(ε − s)) at each node, from the top down
        weights = np.cumsum(untilted[::-1])[::-1]
        discounted = lfilter([1.0], [1.0, -math.exp(-h)], untilted[::-1])[::-1]
        enough = weights - discounted <= target
        if not enough[-1]:
            return math.inf
        node = int(np.argmax(enough))
        if node == 0:
            return float(losses[0])
        between = math.log((weights[node] - target) / discounted[node])
        return float(losses[node]) + min(max(between, -h), 0.0)

    def _discretise(self, pair: SubsampledGaussian) -> tuple[_Tilted, _Tilted]:
        low, high = pair.span(self._reach)
        nodes = np.arange(math.floor(low / self._cell), math.ceil(high / self._cell) + 1)
        p, q = pair.masses(nodes * self._cell, self._reach)
        return self._connect(nodes, p, q), self._connect(-nodes[::-1], q[::-1], p[::-1])

    def _connect(self, nodes: npt.NDArray[np.int64], p: Float, q: Float) -> _Tilted:
        """Connect the dots between `nodes`; P's mass above the last is partly infinite loss.

        A cell's two masses a and b satisfy a + b = p and a e^(−low) + b e^(−high) = q.
        """
        losses = nodes * self._cell
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
        window = np.bincount(
            nodes % self._nodes, np.exp(tilted - log_moment), minlength=self._nodes
        )
        log_moment += _ROUNDING * len(nodes) * (1 + self._tilt)  # of the masses
        return _Tilted(fft.rfft(window), log_moment, float(p[-1]) - last)


class _Tilted:
    """The discrete loss of one step in one direction, tilted by exp(λℓ)."""

    def __init__(self, spectrum: Complex, log_moment: float, infinite: float) -> None:
        self.spectrum, self.log_moment, self.infinite = spectrum, log_moment, infinite


class _Sum:
    """Steps composed in one direction: spectra multiply, log moments and infinite mass add."""

    def __init__(self) -> None:
        self.spectrum: Complex = np.ones(1, dtype=np.complex128)
        self.log_moment = 0.0
        self.infinite = 0.0

    def add(self, loss: _Tilted, count: int) -> None:
        self.log_moment += count * loss.log_moment
        self.infinite += count * loss.infinite
        power = loss.spectrum
        while count:  # by squaring: a tenth of the time of numpy's complex power
            if count & 1:
                self.spectrum = self.spectrum * power
            count >>= 1
            if count:
                power = power * power
