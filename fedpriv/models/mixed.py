"""Frozen weights in half the bytes, all else in float32."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedpriv.models.packed import Packed


def halve_frozen_products(model: nn.Module) -> None:
    """Put the weights of a model's frozen linear layers into bfloat16.

    Adapters, heads, norms, embeddings, activations and biases stay float32. Such a layer computes
    its product in bfloat16 (`fedpriv.gradients.product.linear`), so a changed model needs a
    `PerSampleGradients` attached before it is used. An output layer that was tied to the embeddings
    has a copy from now on. A weight that is kept in fewer bits is made bfloat16 whenever it is
    needed (`fedpriv.models.quantised`).
    """
    from transformers.pytorch_utils import Conv1D

    for name, module in model.named_modules():
        layer: Any = module
        if type(module) not in (nn.Linear, Conv1D) or ".lora_" in name:
            continue
        if isinstance(layer.weight, Packed):
            layer.weight.dtype = torch.bfloat16
        elif not any(p.requires_grad for p in module.parameters()):
            half = layer.weight.detach().to(torch.bfloat16)
            layer.weight = nn.Parameter(half, requires_grad=False)
