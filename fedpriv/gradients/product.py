"""Products of activations with weights, by the faster of torch's two CPU libraries."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from fedpriv.models.packed import Packed

# Torch multiplies float32 matrices on x86 with MKL, which keeps its AVX-512 kernels to Intel's own
# processors. oneDNN, which torch carries for its compiler, has them for every one: on one AMD EPYC
# 2.1 to 2.4 times as fast, on another 1.1 times, in float32 as exact (`benchmarks/products.py`).
# Without AVX-512 MKL is the faster one: on a third EPYC by up to 1.7 times.
_ONEDNN: Any = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
    else None
)


Weight = Tensor | Packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, as `torch.nn.functional.linear`; it has no gradient of its own.

    Args:
        x: (…, in).
        weight: (out, in), in any memory order; the product is computed in its type.
        bias: (out,).

    Returns:
        (…, out), of the type of x.
    """
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        rounded = F.linear(x.to(weight.dtype), weight).to(x.dtype)
        return rounded if bias is None else rounded.add_(bias)
    plain = x.dtype == torch.float32 and x.device.type == "cpu" and x.numel()
    if _ONEDNN is None or not plain or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    product: Tensor = _ONEDNN(x, weight, bias, "none", [], "")
    return product


def weight_of(layer: Any) -> Weight:
    """Return a linear layer's weight as (out, in), also of one that keeps it as (in, out)."""
    weight: Weight = layer.weight
    if isinstance(weight, Packed):
        return weight
    return weight.t() if type(layer) is Conv1D else weight


def plain(weight: Weight) -> Tensor:
    """Return a frozen weight as numbers. A packed one gives a new tensor, to be dropped at once."""
    return weight.unpacked() if isinstance(weight, Packed) else weight


class FrozenLinear(torch.autograd.Function):
    """A linear layer that is not trained: its backward pass needs its weight alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return linear(x, plain(weight), bias)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (g,) = outputs
        return linear(g, plain(ctx.weight).t()), None, None
