"""Clip norms that stay as they are: as stated, or so small that every unit is clipped.

*Fixed.* Without names, C_k = C √(size_k / P) and w_k = size_k / P: each group is scaled by 1 and
clipped by itself, and every coordinate has the noise σC that it has without a controller. With one
group that is exactly the job without a controller.

*Normalise.* Every unit's part in a group gets the same length, whatever it was: only the direction
of what a unit says is left, and the right clip norm no longer depends on how long gradients are.
The clip norms are s times the fixed ones (s is `SHRINK`). After the server has divided by the
scales, a unit's part in a group has the length s·C_k, and so has its noise: both are 1/s times too
small. The server multiplies by `lift` = 1/s. So an update has the size that it would have under
`fixed` if every unit were clipped there, and the learning rate means the same. Without that, adamw
would move the same (it knows no size), and sgd 1/s times too little.

Source:
    Bu, Wang, Zha and Karypis 2023, "Automatic Clipping: Differentially Private Deep Learning Made
    Easier and Stronger", for normalise.
"""

from __future__ import annotations

from fedpriv.controllers.base import Controller, Setting, decision_of, least_noise, start_clip_norms
from fedpriv.controllers.config import FixedSection
from fedpriv.errors import ConfigError
from fedpriv.privacy.usual import MIN_CLIP

SHRINK = 1e-3  # factor of clip norms under normalise: small, so that every unit is clipped


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


class NormaliseController(Controller):
    """Always decides the same.

    If a clip norm would be below the smallest allowed, all shrink only that far.
    """

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        usual = start_clip_norms(setting)
        shrink = max(SHRINK, MIN_CLIP / float(usual.min()))
        self.lift = 1 / shrink
        self._decision = decision_of(shrink * usual, least_noise(usual, setting))
