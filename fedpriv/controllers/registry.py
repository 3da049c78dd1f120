"""Controllers by the name that a federation file gives."""

from __future__ import annotations

from fedpriv.controllers.base import Controller, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.fixed import FixedController, NormaliseController
from fedpriv.controllers.quantile import QuantileController


def make_controller(section: ControllerSection, setting: Setting) -> Controller:
    """Make the controller that a federation file asks for.

    Raises:
        ConfigError: what the file says of groups does not fit the job's.
    """
    match section.name:
        case "fixed":
            return FixedController(section.fixed, setting)
        case "normalise":
            return NormaliseController(setting)
        case "quantile":
            return QuantileController(section.quantile, setting)
