"""Scales of least noise in all, found from the released gradients alone.

Group k of a unit's vector is scaled by a_k, the whole is clipped to C, noise σC is added to every
coordinate, and the server divides by a_k. So the noise has the energy σ²C² Σ size_k / a_k², and
few units are clipped while E‖a∘g‖² = Σ a_k² m_k ≤ C², where m_k = E‖g_k‖² over units. Which a has
the least noise? By Cauchy and Schwarz

    (Σ √(size_k m_k))²  =  (Σ (√size_k / a_k) (a_k √m_k))²  ≤  (Σ size_k / a_k²) (Σ a_k² m_k)

and the last factor is at most C², so no noise is less than S²/C² with S = Σ √(size_k m_k); it is
reached where both sequences are proportional, which is

    a_k² = C² √(size_k / m_k) / S,   that is   C_k = √m_k,   w_k = √(size_k m_k) / S

in a_k = C √w_k / C_k. Groups with small gradients are scaled up, so that noise hurts them less.
With a_k = 1 the noise is P, and S²/C² is at most that where Σ m_k = C²: never more than without.

What m_k is of the units, nobody has released. Released are mean gradients, and of those the
squared norm less that of the noise estimates ‖E g_k‖². We take m_k as proportional to a decaying
mean v_k of these estimates, and of such a size that Σ m_k = C², as the plan's clip norm says: with
all parameters alike, v_k proportional to size_k, this is the job without a controller. How far a
decaying mean of pure noise is from 0 is known (the deviation of a squared norm of noise is
√(2 size_k) · deviation²). A value of that size is added to v, in proportion to size_k, so that
noise by itself leads nowhere; and no group counts less than `floor` times its share of parameters.

Source:
    Gilani, Tasnim, Sankar and Kosut 2025, "GeoClip: Geometry-Aware Clipping for Differentially
    Private SGD", whose transformation is a matrix; this is it with one value for each group.
"""

from __future__ import annotations

import numpy as np

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import Array, Controller, Round, Setting, decision_of
from fedpriv.controllers.config import GeometrySection


class GeometryController(Controller):
    """Scales each group by what its gradients have been like.

    Attributes:
        together: true: the scaled vector is clipped as a whole.
    """

    together = True

    def __init__(self, settings: GeometrySection, setting: Setting) -> None:
        super().__init__(setting)
        self._settings = settings
        self._kept = {
            "squared": np.zeros(setting.count),  # decaying sum of what was seen
            "variance": np.zeros(setting.count),  # of that, were all of it noise
        }

    def decide(self, number: int) -> Decision:
        """Return the scales that fit the rounds so far; before any, all are 1."""
        energy = self.setting.clip_norm**2 * self._proportions()  # m_k
        return decision_of(np.sqrt(energy), np.sqrt(self.setting.shares * energy))

    def _proportions(self) -> Array:
        """Return m_k / Σ m_k."""
        shares = self.setting.shares
        error = np.sqrt(self._kept["variance"].sum())
        counted = np.maximum(self._kept["squared"], 0.0) + error * shares
        total = counted.sum()
        found = counted / total if total > 0 else shares
        found = np.maximum(found, self._settings.floor * shares)
        return np.asarray(found / found.sum())

    def _learn(self, seen: Round) -> None:
        decay, sizes = self._settings.decay, np.asarray(self.setting.sizes, np.float64)
        squared, variance = self._kept["squared"], self._kept["variance"]
        self._kept["squared"] = decay * squared + seen.squared
        self._kept["variance"] = decay**2 * variance + 2 * sizes * seen.deviation**4
