"""What tests of controllers share: settings, controllers, and what one sees of a round."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpriv.config.groups import Decision
from fedpriv.controllers.base import Array, Controller, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.registry import make_controller
from fedpriv.privacy.mechanism.privatised import Privatised, received

NAMES = ("fixed", "normalise", "quantile")


def setting_of(sizes: tuple[int, ...] = (10, 30, 60), clip_norm: float = 0.5) -> Setting:
    """A job of so many groups."""
    return Setting(tuple(f"group {index}" for index in range(len(sizes))), sizes, clip_norm)


def make(name: str, setting: Setting | None = None, **settings: Any) -> Controller:
    """The controller of that name."""
    section = {"name": name} | ({name: settings} if settings else {})
    setting = setting_of() if setting is None else setting
    return make_controller(ControllerSection.model_validate(section), setting)


def shares(within: Any) -> Privatised[Array]:
    """The shares of units within, as a server would hand them over."""
    return received(np.asarray(within, np.float64))


def scales(decision: Decision, clip_norm: float) -> Array:
    """a_k of a decision, as a site computes them."""
    return np.asarray(clip_norm * np.sqrt(decision.weights) / np.asarray(decision.clip_norms))
