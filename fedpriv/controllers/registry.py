"""Controllers by the name that a federation file gives."""

from __future__ import annotations

from fedpriv.controllers.base import Controller, Setting
from fedpriv.controllers.config import ControllerSection
from fedpriv.controllers.fixed import FixedController, NormaliseController
from fedpriv.controllers.quantile import QuantileController
from fedpriv.errors import ConfigError


def make_controller(section: ControllerSection, setting: Setting) -> Controller:
    """Make the controller that a federation file asks for.

    Raises:
        ConfigError: what the file says of groups does not fit the job's; or the job has a filter
            and the controller can't use one, or the other way round.
    """
    if section.adaptive != (setting.filter is not None):
        raise ConfigError(
            "does not fit the job's plan, which has "
            + ("no filter" if setting.filter is None else "a filter"),
            key="controller.adaptive",
            value=section.adaptive,
            fix=f"Set it to {str(not section.adaptive).lower()} (true is for sac).",
        )
    match section.name:
        case "fixed":
            return FixedController(section.fixed, setting)
        case "normalise":
            return NormaliseController(setting)
        case "quantile":
            return QuantileController(section.quantile, setting)
        case "sac":
            from fedpriv.controllers.sac import SacController

            return SacController(section.sac, setting)
