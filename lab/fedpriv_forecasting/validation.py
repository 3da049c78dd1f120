"""How well the curves predict measured federations that they have not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedpriv_forecasting.curve import Runs, Terms, fit_curve


@dataclass(frozen=True)
class LeftOut:
    """How well curves predict groups that they have not seen.

    Attributes:
        groups: of runs with the same sites, each predicted from the others.
        runs: single runs that were predicted.
        inside: share of them whose gain was in its 90% interval.
        miss: root of the mean square of what predictions were off by.
        without: the same if the mean of all other settings is the prediction.
    """

    groups: int
    runs: int
    inside: float
    miss: float
    without: float


def leave_groups_out(runs: Sequence[Runs], terms: Terms | None = None) -> LeftOut | None:
    """Predict each group from all others; None if there are too few.

    Args:
        terms: as for `fit_curve`.
    """
    known = [one for one in runs if not one.setting.warm_start]
    inside, missed, without = [], [], []
    groups = dict.fromkeys(one.setting.group for one in known)
    for group in groups:
        others = [one for one in known if one.setting.group != group]
        curve = fit_curve(others, terms)
        if curve is None:
            return None
        usual = float(np.mean([one.mean for one in others]))
        for one in known:
            if one.setting.group == group:
                found = curve.predict(one.setting)
                inside += [found.low <= gain <= found.high for gain in one.means]
                missed += [gain - found.gain for gain in one.means]
                without += [gain - usual for gain in one.means]
    if not missed:
        return None
    rms = [math.sqrt(float(np.mean(np.square(errors)))) for errors in (missed, without)]
    return LeftOut(len(groups), len(missed), float(np.mean(inside)), *rms)
