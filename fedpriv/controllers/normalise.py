"""Every unit's part in a group gets the same length, whatever it was.

Clip norms are so small that all units are clipped in every group: only the direction of what a
unit says is left, and how long gradients are no longer matters to what clip norm is right.

The clip norms are s times those of `fixed` (s is `controller.normalise.shrink`). After the server
has divided by the scales, a unit's part in a group has the length s·C_k, and so has its noise: both
are 1/s times too small. The server multiplies by `lift` = 1/s, and an update has the size that it
would have under `fixed` were every unit clipped there; the learning rate means the same. Without
that, adamw would move the same (it knows no size), and sgd 1/s times too little.

Source:
    Bu, Wang, Zha and Karypis 2023, "Automatic Clipping: Differentially Private Deep Learning Made
    Easier and Stronger".
"""

from __future__ import annotations

from fedpriv.controllers.base import Controller, Setting, decision_of, least_noise, start_clip_norms
from fedpriv.controllers.config import NormaliseSection
from fedpriv.privacy.usual import MIN_CLIP


class NormaliseController(Controller):
    """Always decides the same.

    If a clip norm would be below the smallest allowed, all shrink only that far.
    """

    def __init__(self, settings: NormaliseSection, setting: Setting) -> None:
        super().__init__(setting)
        usual = start_clip_norms(setting)
        shrink = max(settings.shrink, MIN_CLIP / float(usual.min()))
        self.lift = 1 / shrink
        self._decision = decision_of(shrink * usual, least_noise(usual, setting))
