"""Clip norms, and in an adaptive job noise and rate, that change over the rounds.

Clip norms are those of `fixed` times a factor that goes from 1 in the first round to
`end_clip` in the last. In an adaptive job the sample rate goes from its first value to `end_rate`
times that, the larger of both being the plan's, and the noise multiplier from its first value to
`end_noise` times that. The first noise is the least with which all rounds together debit no more
than the plan's budget: before the first round it is known what every round will cost, so the
budget is used up, and never overrun. What a decision says is which share of the budget a round
may use. That buys exactly this noise where a site's plan is as proposed; where a site has a
smaller budget, or another order, it buys more noise, of nearly the same shape.

A factor changes in `STAGES` steps at most, each of as many rounds as the others or one more.
"""

from __future__ import annotations

import math
from collections import Counter

from fedpriv.config.groups import MIN_SHARE, Decision
from fedpriv.controllers.base import Controller, Setting, decision_of, least_noise, start_clip_norms
from fedpriv.controllers.config import ScheduleSection
from fedpriv.privacy.accounting.filter import RdpFilter

STAGES = 100
MIN_NOISE, MAX_NOISE = 1e-3, 1e3  # relative to the plan's
MARGIN = 1 - 1e-9  # of the budget, for whoever adds the debits up in another order


class ScheduleController(Controller):
    """Decides by the number of the round alone."""

    def __init__(self, settings: ScheduleSection, setting: Setting) -> None:
        super().__init__(setting)
        self._settings = settings
        self._start = start_clip_norms(setting)
        self._weights = least_noise(self._start, setting)
        self._stages = min(setting.rounds, STAGES)
        self._shares: list[float] | None = None
        self._rates = [1.0] * self._stages
        if setting.filter is not None:
            rates = [self._factor(settings.end_rate, stage) for stage in range(self._stages)]
            self._rates = [rate / max(rates) for rate in rates]
            self._shares = self._affordable(setting.filter)

    def decide(self, number: int) -> Decision:
        """Return what the schedule says of a round; after the last one, as in the last."""
        stage = self._stage(number)
        clip_norms = self._start * self._factor(self._settings.end_clip, stage)
        share = None if self._shares is None else self._shares[stage]
        return decision_of(clip_norms, self._weights, share, self._rates[stage])

    def _stage(self, number: int) -> int:
        rounds = self.setting.rounds
        return min(max(number - 1, 0), rounds - 1) * self._stages // rounds

    def _factor(self, end: float, stage: int) -> float:
        progress = stage / max(self._stages - 1, 1)
        if self._settings.shape == "linear":
            return 1 + (end - 1) * progress
        return math.exp(progress * math.log(end))

    def _affordable(self, budget: RdpFilter) -> list[float]:
        """Return the share of the budget of a round in each stage, for noise of the asked form."""
        rounds = Counter(self._stage(number) for number in range(1, self.setting.rounds + 1))
        shape = [self._factor(self._settings.end_noise, stage) for stage in range(self._stages)]

        def shares(first: float) -> list[float]:
            noises = (min(max(first * factor, MIN_NOISE), MAX_NOISE) for factor in shape)
            asked = zip(noises, self._rates, strict=True)
            debits = (budget.debit(noise, rate) / budget.budget for noise, rate in asked)
            return [max(share, MIN_SHARE) for share in debits]

        def fits(first: float) -> bool:
            spent = math.fsum(rounds[stage] * share for stage, share in enumerate(shares(first)))
            return spent <= MARGIN

        low, high = MIN_NOISE, (1 + 1e-6) / min(shape)  # nowhere less noise than the plan's
        while high > low * (1 + 1e-9):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if fits(middle) else (middle, high)
        return shares(high)
