"""Keep of each layer of a model what enters it, and compute the rest again when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedpriv.errors import ConfigError


def checkpoint_layers(model: Any) -> None:
    """Gradient checkpointing (Chen et al. 2016) of the repeated layers of a model.

    What transformers does by itself asks for training mode, and so for dropout.

    Raises:
        ConfigError: the model has no layers that are known to be repeated.
    """
    layers = [layer for layer in model.modules() if _is_repeated(layer)]
    if not layers:
        raise ConfigError(
            f"is not known for a {model.config.model_type} model",
            key="compute.gradient_checkpointing",
            value=True,
            fix="Leave it out, and lower compute.microbatch.",
        )
    for layer in layers:
        layer.forward = _twice(layer.forward)


@contextmanager
def checkpointed(model: Any) -> Iterator[None]:
    """Do so in a `with` block, of those layers that somebody told transformers to checkpoint."""
    asked = [m for m in model.modules() if _is_repeated(m) and m.gradient_checkpointing]
    kept = {m: vars(m).get("forward") for m in asked}
    for layer in kept:
        layer.forward = _twice(layer.forward)
    try:
        yield
    finally:
        for layer, forward in kept.items():
            vars(layer).pop("forward")
            if forward is not None:
                layer.forward = forward


def is_asked_for(model: Any) -> bool:
    """Whether somebody told transformers to checkpoint layers."""
    return any(_is_repeated(m) and m.gradient_checkpointing for m in model.modules())


def _is_repeated(layer: Any) -> bool:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return isinstance(layer, GradientCheckpointingLayer)


def _twice(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def twice(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(
            forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named
        )

    return twice
