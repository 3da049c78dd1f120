"""Compute exact per-record gradients of LoRA and linear layers, at the cost of summed ones.

With x (B, T, d_in) entering and g (B, T, d_out) leaving a linear layer, the gradient of one
record's loss by the weight is gᵀx over that record's own positions. One `bmm` makes it for
the whole batch, with exactly the multiplications of the summed weight gradient, which is not
computed. Each layer's gradients are handed over as they are made, and no more than one layer's are
held. They are made with the smaller of their two dimensions first, and transposed where the weight
has the other order: for lora_B a `bmm` writes that several times faster, and transposing costs
little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedpriv.errors import NotPrivateError
from fedpriv.gradients.engine import GradientEngine, Losses, Take, backward
from fedpriv.gradients.product import FrozenLinear, plain, weight_of
from fedpriv.gradients.recording import Record, RecordingLinear, RecordingLora, Term, terms_of


@dataclass(frozen=True)
class _Block:
    """One trained layer's columns.

    Attributes:
        start, bias_start: its first column, and its bias's first column, if the bias is trained.
        shape: the shape of its weight.
    """

    name: str
    start: int
    shape: tuple[int, int]
    bias_start: int | None


class PerSampleGradients(GradientEngine):
    """Compute per-record gradients of all that is trainable in a model.

    Only `nn.Linear` layers may be trainable (the two matrices of LoRA are such layers, and
    so are classification heads). While attached, their forward pass goes through an
    autograd function that hands over the records' gradients and returns none for the weight;
    `detach` puts everything back.

    Args:
        model: in evaluation mode while gradients are computed, so that no dropout mask and no
            batch statistic ties records together.

    Raises:
        NotPrivateError: something trainable is not a linear layer, or a layer mixes records.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        for missing, kind in unknown(model):
            raise NotPrivateError(
                f"{missing}: per-record gradients of a trainable {kind} can't be computed"
                " exactly. Train LoRA matrices and linear heads only, or set"
                ' compute.engine = "opacus".'
            )
        self._take: Take | None = None
        self._batch = self._thread = 0
        self._patched: list[nn.Module] = []
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        self._starts = {name: start for name, (start, _) in zip(trained, self.blocks, strict=True)}
        self._blocks = {
            name: self._block(name, module)
            for name, module in model.named_modules()
            if any(p.requires_grad for p in module.parameters(recurse=False))
        }
        self._attach()

    def _block(self, name: str, module: Any) -> _Block:
        trained = {k for k, p in module.named_parameters(recurse=False) if p.requires_grad}
        prefix = f"{name}." if name else ""
        for key in trained:
            if f"{prefix}{key}" not in self._starts:
                raise NotPrivateError(
                    f"{prefix}{key}: is shared by several layers, so their per-record gradients"
                    " can't be told apart. Leave the layer out of lora.modules_to_save."
                )
        rows, columns = module.weight.shape
        bias = self._starts[f"{prefix}bias"] if "bias" in trained else None
        return _Block(name, self._starts[f"{prefix}weight"], (rows, columns), bias)

    def _attach(self) -> None:
        """Give every linear layer our forward pass. Of a LoRA layer, only the outermost gets it."""
        within: set[nn.Module] = set()
        named = dict(self._model.named_modules())
        names = {module: name for name, module in named.items()}
        for name, module in named.items():
            if module in within:
                continue
            terms = terms_of(module)
            if terms is not None:
                within.update(module.modules())
                own = [self._with_blocks(term, names) for term in terms]
                self._replace(module, partial(self._fused, module.base_layer, own))
            elif name in self._blocks:
                self._replace(module, partial(self._recording, module, self._blocks[name]))
            elif type(module) in (nn.Linear, Conv1D):
                self._replace(module, partial(_frozen, module))

    def _with_blocks(self, term: Term[_Block], names: dict[nn.Module, str]) -> Term[_Block]:
        of_a, of_b = (self._blocks.get(names[layer]) for layer in (term.a, term.b))
        return replace(term, blocks=(of_a, of_b))

    def _replace(self, module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
        module.forward = forward
        self._patched.append(module)

    def _recording(self, module: Any, block: _Block, x: Tensor) -> Tensor:
        return _apply(RecordingLinear, x, module.weight, module.bias, self._recorder(), block)

    def _fused(self, base: Any, terms: list[Term[_Block]], x: Tensor) -> Tensor:
        matrices = [layer.weight for term in terms for layer in (term.a, term.b)]
        record, weight = self._recorder(), weight_of(base)
        return _apply(RecordingLora, x, weight, base.bias, record, terms, *matrices)

    def stream(self, losses: Losses, batch_size: int, take: Take) -> None:
        """Stream as `GradientEngine.stream` does; no more than one layer's gradients are held."""
        self._take, self._batch, self._thread = take, batch_size, get_ident()
        try:
            backward(self._model, losses, batch_size, self._trained)
        finally:
            self._take = None

    def _recorder(self) -> Record[_Block]:
        """Return what a pass hands over to. A pass of another thread is not of the batch."""
        computed_again = torch._C._current_graph_task_id() >= 0  # by autograd, in its own thread
        own = self._take is not None and (self._thread == get_ident() or computed_again)
        return partial(self._record, own)

    def _record(self, own: bool, block: _Block, x: Tensor, g: Tensor) -> None:
        batch = self._batch
        if self._take is None or not own:
            raise NotPrivateError(
                f"{block.name}: went backwards outside of a private step. Its gradients would be"
                " those of the records themselves, so none are made."
            )
        if x.shape[0] != batch or x.ndim < 2:
            raise NotPrivateError(
                f"{block.name}: was fed a tensor of shape {tuple(x.shape)} in a batch of {batch},"
                " so its gradient can't be told apart by record."
            )
        x = x.reshape(batch, -1, x.shape[-1]).to(self.dtype)  # (B, T, d_in)
        g = g.reshape(batch, -1, g.shape[-1]).to(self.dtype)  # (B, T, d_out)
        d_out, d_in = block.shape
        if d_out > d_in:
            weight = torch.bmm(x.transpose(1, 2), g).transpose(1, 2)
        else:
            weight = torch.bmm(g.transpose(1, 2), x)
        self._take(block.start, weight.reshape(batch, d_out * d_in))
        if block.bias_start is not None:
            self._take(block.bias_start, g.sum(1))

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Set aside as `GradientEngine.set_aside` does. Packed weights multiply as numbers."""
        self.detach()
        for module in self._model.modules():
            if type(module) in (nn.Linear, Conv1D):
                self._replace(module, partial(_by_its_numbers, module))
        try:
            yield
        finally:
            self.detach()
            self._attach()

    def detach(self) -> None:
        """Give the layers their own forward pass back."""
        for module in self._patched:
            vars(module).pop("forward", None)
        self._patched.clear()


def unknown(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield what is trained and has no rule here: a parameter's name, and its kind of layer."""
    for name, module in model.named_modules():
        trained = {k for k, p in module.named_parameters(recurse=False) if p.requires_grad}
        if trained and (type(module) is not nn.Linear or "weight" not in trained):
            yield f"{name}.{min(trained)}", type(module).__name__


def _frozen(module: Any, x: Tensor) -> Tensor:
    return _apply(FrozenLinear, x, weight_of(module), module.bias)


def _by_its_numbers(module: Any, x: Tensor) -> Tensor:
    return nn.functional.linear(x, plain(weight_of(module)).to(x.dtype), module.bias)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result
