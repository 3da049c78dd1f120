"""What tests of controllers share: settings, rounds that are over, and a world that answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import Controller, Seen, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.mechanism.privatised import received

NAMES = ("fixed", "normalise", "quantile", "sac")
SMALL_SAC = {"encoder": 8, "warm_up": 2, "updates": 1, "replay": 20}
ROUNDS = 12


def setting_of(
    sizes: tuple[int, ...] = (10, 30, 60), *, adaptive: bool = False, **changed: Any
) -> Setting:
    """A job of so many groups; an adaptive one has a filter of σ = 1 at q = 0.1."""
    values: dict[str, Any] = {
        "groups": tuple(f"group {index}" for index in range(len(sizes))),
        "sizes": sizes,
        "rounds": ROUNDS,
        "clip_norm": 0.5,
        **changed,
    }
    budget = RdpFilter(8, 0.1, 1.0, values["rounds"]) if adaptive else None
    return Setting(filter=budget, **values)


def make(name: str, setting: Setting | None = None, **settings: Any) -> Controller:
    """The controller of that name; sac is a small one."""
    setting = setting_of() if setting is None else setting
    given = {**SMALL_SAC, **settings} if name == "sac" else settings
    section = {"name": name, "adaptive": setting.filter is not None}
    section |= {name: given} if given else {}
    return make_controller(ControllerSection.model_validate(section), setting)


def seen_of(
    number: int,
    decision: Decision,
    squared: Any,
    *,
    deviation: Any = None,
    within: Any = None,
    moved: Any = None,
    spent: float = 0.0,
    loss: float | None = None,
) -> Seen:
    """A round with these values, as a server would hand them over."""
    count = len(decision.weights)
    return Seen(
        number=number,
        decision=decision,
        squared=received(np.asarray(squared, np.float64)),
        deviation=tuple([0.01] * count if deviation is None else deviation),
        within=None if within is None else received(np.asarray(within, np.float64)),
        moved=received(np.asarray([1.0] * count if moved is None else moved, np.float64)),
        spent=spent,
        loss=None if loss is None else received(loss),
    )


def scales(decision: Decision, clip_norm: float, bits: float = 0.0) -> np.ndarray[Any, Any]:
    """a_k of a decision, as a site computes them."""
    weights = np.asarray(decision.weights)
    return clip_norm * np.sqrt((1 - bits) * weights) / np.asarray(decision.clip_norms)
