"""Clip norms, and in an adaptive job noise and rate, that change over the rounds.

Clip norms are those of `fixed` times a factor that goes from 1 in the first round to
`end_clip` in the last. In an adaptive job the sample rate goes from its first value to `end_rate`
times that, the larger of both being the plan's, and the noise multiplier from its first value to
`end_noise` times that. The first noise is the least with which all rounds together debit no more
than the plan's budget: before the first round it is known what every round will cost, so the
budget is used up, and never overrun.

A factor changes in `STAGES` steps at most, each of as many rounds as the others or one more.
"""

from __future__ import annotations

import math
from collections import Counter

from fedpriv.config.controller import ScheduleSection
from fedpriv.config.groups import MAX_NOISE, MIN_NOISE, Decision
from fedpriv.controllers.base import (
    ControllerBase,
    decision_of,
    least_noise,
    start_clip_norms,
)
from fedpriv.controllers.interface import Setting
from fedpriv.privacy.accounting.filter import RdpFilter

STAGES = 100
MARGIN = 1 - 1e-9  # of the budget, for whoever adds the debits up in another order


class ScheduleController(ControllerBase):
    """Decides by the number of the round alone."""

    def __init__(self, settings: ScheduleSection, setting: Setting) -> None:
        super().__init__(setting)
        self._settings = settings
        self._start = start_clip_norms(setting)
        self._weights = least_noise(self._start, setting)
        self._stages = min(setting.rounds, STAGES)
        self._noises = [1.0] * self._stages
        self._rates = [1.0] * self._stages
        if setting.filter is not None:
            rates = [self._factor(settings.end_rate, stage) for stage in range(self._stages)]
            self._rates = [rate / max(rates) for rate in rates]
            self._noises = self._affordable(setting.filter)

    def decide(self, number: int) -> Decision:
        """What the schedule says of a round; after the last one, the same as in the last."""
        stage = self._stage(number)
        clip_norms = self._start * self._factor(self._settings.end_clip, stage)
        return decision_of(clip_norms, self._weights, self._noises[stage], self._rates[stage])

    def _stage(self, number: int) -> int:
        rounds = self.setting.rounds
        return min(max(number - 1, 0), rounds - 1) * self._stages // rounds

    def _factor(self, end: float, stage: int) -> float:
        progress = stage / max(self._stages - 1, 1)
        if self._settings.shape == "linear":
            return 1 + (end - 1) * progress
        return math.exp(progress * math.log(end))

    def _affordable(self, budget: RdpFilter) -> list[float]:
        """The noises (relative to the plan's) of all stages, of the form asked for."""
        rounds = Counter(self._stage(number) for number in range(1, self.setting.rounds + 1))
        shape = [self._factor(self._settings.end_noise, stage) for stage in range(self._stages)]

        def noises(first: float) -> list[float]:
            return [min(max(first * factor, MIN_NOISE), MAX_NOISE) for factor in shape]

        def fits(first: float) -> bool:
            asked = zip(noises(first), self._rates, strict=True)
            debits = [budget.debit(noise, rate) for noise, rate in asked]
            spent = math.fsum(rounds[stage] * debit for stage, debit in enumerate(debits))
            return spent <= budget.budget * MARGIN

        low, high = MIN_NOISE, (1 + 1e-6) / min(shape)  # nowhere less noise than the plan's
        while high > low * (1 + 1e-9):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle) else (middle, high)
        return noises(high)
