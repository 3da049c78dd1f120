"""Clip norms that follow a quantile of the units' own norms, learned through noise.

Each unit says with its gradient, of each group, whether it was within the group's clip norm. With
the noisy share b_k of units that were, the target γ and the rate η,

    C_k ← C_k · exp(−η (b_k − γ)),

so that in the end a share γ of the units is within. b_k − γ counts as at most 1 either way, and a
clip norm stays within a factor `SPAN` of where it began. Weights divide the noise so that there is
least of it in all (`fedpriv.controllers.base`).

Privacy:
    What a unit says is in the same vector as its gradient and within the same clip norm C, of
    whose square it takes the share f = `bits`. So it costs no ε, and the gradient's own noise is
    larger by 1/√(1−f).

Source:
    Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private Learning with Adaptive
    Clipping".
"""

from __future__ import annotations

import math

import numpy as np

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import (
    Array,
    Controller,
    Setting,
    decision_of,
    least_noise,
    start_clip_norms,
)
from fedpriv.controllers.config import QuantileSection

SPAN = 1e4


class QuantileController(Controller):
    """Moves each group's clip norm by what share of units was within it."""

    def __init__(self, settings: QuantileSection, setting: Setting) -> None:
        super().__init__(setting)
        self._settings = settings
        self.bits = settings.bits
        self._start = start_clip_norms(setting)
        self._kept = {"log": np.zeros(setting.count)}  # logs of clip norms over their start

    def decide(self) -> Decision:
        """Return the clip norms that the rounds so far have led to."""
        clip_norms = self._start * np.exp(self._kept["log"])
        return decision_of(clip_norms, least_noise(clip_norms, self.setting))

    def _learn(self, within: Array) -> None:
        distance = np.nan_to_num(np.clip(within - self._settings.target, -1, 1), nan=0.0)
        limit, moved = math.log(SPAN), self._kept["log"] - self._settings.rate * distance
        self._kept["log"] = np.clip(moved, -limit, limit)
