"""The shapes of what an adapter trains, told before a model is loaded."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fedpriv.environment import without_hub_code
from fedpriv.models.base import Base
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.lora import layers, matches, targets
from fedpriv.models.stored import without_weights


@without_hub_code()
def adapter_shapes(settings: ModelSection, lora: LoraSection) -> Counter[tuple[int, int]]:
    """Count the matrices of each shape, (rows, columns), that an adapter trains: A and B of layers.

    Raises:
        ModelError: there is no such model.
        ConfigError: ``lora.target_modules`` matches nothing in it.
    """
    model: Any = without_weights(settings)
    base = Base(model, None, settings.name, digest="")  # type: ignore[arg-type]
    found: Counter[tuple[int, int]] = Counter()
    names = targets(base, lora)
    for name, layer in layers(base):
        if matches(name, names):
            inputs, outputs = layer.weight.shape
            if type(layer).__name__ == "Linear":
                inputs, outputs = outputs, inputs
            found[lora.r, inputs] += not lora.frozen_a
            found[outputs, lora.r] += 1
    return +found
