"""Keep only the input of each layer of a model, and compute the rest again when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fedpriv.errors import ConfigError


def checkpoint_layers(model: Any) -> None:
    """Checkpoint the gradients (Chen et al. 2016) of the repeated layers of a model.

    Transformers' own checkpointing is not used: it needs training mode, and so dropout.

    Raises:
        ConfigError: the model has no layers that are known to be repeated.
    """
    layers = _repeated(model)
    if not layers:
        problem = f"is not known for a {model.config.model_type} model"
        fix = "Leave it out, and lower compute.microbatch."
        raise ConfigError(problem, key="compute.gradient_checkpointing", value=True, fix=fix)
    for layer in layers:
        layer.forward = _checkpointed(layer.forward)


def asked_for(model: Any) -> list[Any]:
    """Return the layers that somebody told transformers to checkpoint."""
    return [layer for layer in _repeated(model) if layer.gradient_checkpointing]


@contextmanager
def checkpointed(model: Any) -> Iterator[None]:
    """Checkpoint the layers of `asked_for` in a `with` block."""
    kept = [(layer, vars(layer).get("forward")) for layer in asked_for(model)]
    for layer, _ in kept:
        layer.forward = _checkpointed(layer.forward)
    try:
        yield
    finally:
        for layer, forward in kept:
            del layer.forward
            if forward is not None:
                layer.forward = forward


def _repeated(model: Any) -> list[Any]:
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]


def _checkpointed(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def twice(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(
            forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named
        )

    return twice
