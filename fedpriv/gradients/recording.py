"""Linear layers that hand over what their weight's gradient is made of, instead of making it.

The gradient of a weight by one record's loss is gᵀx over that record's positions: x (B, T, in) is
what entered the layer, g (B, T, out) what came back to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedpriv.gradients.product import Weight, linear, plain

Block = TypeVar("Block")
Record = Callable[[Block, Tensor, Tensor], None]  # takes a block, x and g


class RecordingLinear(torch.autograd.Function):
    """x Wᵀ + b, whose backward pass calls ``record(block, x, g)``."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, record: Record[Any], block: Any
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.record, ctx.block = record, block
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (g,) = outputs
        x, weight = ctx.saved_tensors
        ctx.record(ctx.block, x, g)
        return (linear(g, weight.t()) if ctx.needs_input_grad[0] else None), None, None, None, None


@dataclass(frozen=True)
class Term(Generic[Block]):
    """What one adapter adds to a layer: scaling · B A x.

    Attributes:
        a, b: its two layers, without a bias.
        blocks: the blocks of their gradients; None for a layer that is not trained.
    """

    a: nn.Linear
    b: nn.Linear
    scaling: float
    blocks: tuple[Block | None, Block | None] = (None, None)


class RecordingLora(torch.autograd.Function):
    """W x + b + Σ scaling · B A x: a frozen layer and its adapters at once.

    The adapters' parts are added to the large product in place, forward and backward, so that no
    other tensor of its size is made.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        record: Record[Any],
        terms: list[Term[Any]],
        *matrices: Tensor,  # those of the terms: autograd looks at arguments alone
    ) -> Tensor:
        out = linear(x, plain(weight), bias)
        inner = []
        for term in terms:
            h = linear(x.to(term.a.weight.dtype), term.a.weight)
            _add_product(out, h, term.b.weight.t(), term.scaling)
            inner.append(h)
        ctx.save_for_backward(x, *inner)
        ctx.weight, ctx.record, ctx.terms = weight, record, terms
        return out

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (g,) = outputs
        x, *inner = ctx.saved_tensors
        change = linear(g, plain(ctx.weight).t()) if ctx.needs_input_grad[0] else None
        for term, h in zip(ctx.terms, inner, strict=True):
            of_a, of_b = term.blocks
            if of_b is not None:
                ctx.record(of_b, h * term.scaling, g)
            if of_a is None and change is None:
                continue
            inward = linear(g.to(term.b.weight.dtype), term.b.weight.t()) * term.scaling
            if of_a is not None:
                ctx.record(of_a, x, inward)
            if change is not None:
                _add_product(change, inward, term.a.weight, 1.0)
        return change, *[None] * (4 + 2 * len(ctx.terms))


def _add_product(total: Tensor, left: Tensor, right: Tensor, scaling: float) -> None:
    """Add scaling · left @ right to `total`, rounded to the type of `total` once."""
    flat = total.view(-1, total.shape[-1])
    if total.dtype == left.dtype:
        flat.addmm_(left.reshape(-1, left.shape[-1]), right, alpha=scaling)
    else:
        flat.add_(left.reshape(-1, left.shape[-1]) @ right, alpha=scaling)


def terms_of(module: nn.Module) -> list[Term[Any]] | None:
    """Return the active adapters of a layer of peft; None if it is not a plain LoRA layer.

    A layer that is not computed as in `RecordingLora`, such as DoRA, is left as it is.
    """
    peft = sys.modules.get("peft.tuners.lora")  # without it, none of its layers exists
    if peft is None or type(module) is not peft.Linear or module.merged or module.disable_adapters:
        return None
    layer: Any = module
    if type(layer.base_layer) not in (nn.Linear, Conv1D):
        return None
    if any(p.requires_grad for p in layer.base_layer.parameters()):
        return None
    found: list[Term[Any]] = []
    for name in layer.active_adapters:
        if name not in layer.lora_A:
            continue
        a, b = layer.lora_A[name], layer.lora_B[name]
        plain = type(a) is type(b) is nn.Linear and a.bias is None and b.bias is None
        if not plain or name in layer.lora_variant:
            return None
        found.append(Term(a, b, float(layer.scaling[name])))
    return found
