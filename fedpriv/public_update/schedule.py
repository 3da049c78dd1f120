"""The learning rate of each step: a public function of the settings and the step's number."""

from __future__ import annotations

import math

from fedpriv.public_update.config import OptimizerSection


def learning_rate(settings: OptimizerSection, step: int, steps: int) -> float:
    """Return the rate of step 1 … `steps`.

    It rises in `warmup` equal stairs to `lr`, then stays, or falls to 0 just after the last step
    along a line or half a cosine.

    Raises:
        ValueError: there is no such step.
    """
    if not 1 <= step <= steps:
        raise ValueError(f"Expected 1 <= step={step} <= steps={steps}.")
    if step <= settings.warmup:
        return settings.lr * step / settings.warmup
    done = (step - 1 - settings.warmup) / (steps - settings.warmup)
    match settings.schedule:
        case "constant":
            return settings.lr
        case "linear":
            return settings.lr * (1 - done)
        case "cosine":
            return settings.lr * (1 + math.cos(math.pi * done)) / 2
