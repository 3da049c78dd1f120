"""It learns, within its bounds and within the budget."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from controller_rounds import make, seen_of, setting_of

from fedpriv.controllers.interface import Controller, Setting
from fedpriv.controllers.sac import SacController
from fedpriv.privacy.accounting.filter import RdpFilter

FAST = {"encoder": 32, "warm_up": 40, "updates": 4, "batch": 32, "lr": 3e-3, "replay": 10_000}
UNITS = 20.0  # in a round


def world(controller: Controller, rounds: int, *, with_loss: bool) -> np.ndarray[Any, Any]:
    """The weight of the first of two groups, which alone has gradients, round by round.

    Every unit's gradient has the norm 1 there. The loss falls by as much of 0.1 as is signal in
    that group; what happens in the other one does not change it.
    """
    drawn, found, loss = np.random.default_rng(0), [], 5.0
    sizes = np.array([50.0, 50.0])
    for number in range(1, rounds + 1):
        decision = controller.decide(number)
        clip_norms, weights = np.asarray(decision.clip_norms), np.asarray(decision.weights)
        deviation = clip_norms / np.sqrt(weights) / UNITS
        signal = np.array([min(1.0, clip_norms[0]) ** 2, 0.0])
        noise = sizes * deviation**2
        loss -= 0.1 * signal[0] / (signal[0] + noise[0])
        seen_loss = loss + 0.001 * drawn.normal() if with_loss else None
        squared = signal + noise * drawn.normal(0, np.sqrt(2 / sizes))
        seen = seen_of(number, decision, squared, deviation=deviation, loss=seen_loss)
        controller.see(seen)
        found.append(weights[0])
    return np.array(found)


@pytest.mark.parametrize("with_loss", [True, False])
def test_it_finds_the_group_that_has_all_the_signal(with_loss: bool) -> None:
    setting = setting_of((50, 50), rounds=400, clip_norm=1.0)
    found = world(make("sac", setting, **FAST), 400, with_loss=with_loss)
    assert 0.35 < found[:40].mean() < 0.65  # at first, anything
    assert found[-50:].mean() > 0.75
