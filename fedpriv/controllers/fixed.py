"""Clip norms that stay as they are.

Without names, C_k = C √(size_k / P) and w_k = size_k / P: each group is scaled by 1 and clipped by
itself, and every coordinate has the noise σC that it has without a controller. With one group that
is exactly the job without a controller.
"""

from __future__ import annotations

from fedpriv.controllers.base import Controller, Setting, decision_of, least_noise, start_clip_norms
from fedpriv.controllers.config import FixedSection
from fedpriv.errors import ConfigError


class FixedController(Controller):
    """Always decides the same.

    Raises:
        ConfigError: a clip norm is for a group that does not exist.
    """

    def __init__(self, settings: FixedSection, setting: Setting) -> None:
        super().__init__(setting)
        clip_norms = start_clip_norms(setting)
        for name, clip_norm in settings.clip_norms.items():
            if name not in setting.groups:
                problem = "is no group of this job"
                fix = f"The groups are {_shown(setting.groups)}."
                raise ConfigError(problem, key="controller.fixed.clip_norms", value=name, fix=fix)
            clip_norms[setting.groups.index(name)] = clip_norm
        self._decision = decision_of(clip_norms, least_noise(clip_norms, setting))


def _shown(names: tuple[str, ...], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")
