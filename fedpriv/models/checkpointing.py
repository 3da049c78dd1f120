"""Keep of each layer of a model what enters it, and compute the rest again when it is needed."""

from __future__ import annotations

from typing import Any

import torch

from fedpriv.errors import ConfigError


def checkpoint_layers(model: Any) -> None:
    """Gradient checkpointing (Chen et al. 2016) of the repeated layers of a model.

    What transformers does by itself asks for training mode, and so for dropout.

    Raises:
        ConfigError: the model has no layers that are known to be repeated.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in model.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(
            f"is not known for a {model.config.model_type} model",
            key="compute.gradient_checkpointing",
            value=True,
            fix="Leave it out, and lower compute.microbatch.",
        )
    for layer in layers:
        layer.forward = _checkpointed(layer.forward)


def _checkpointed(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def twice(*arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **named)
        return checkpoint(
            forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named
        )

    return twice
