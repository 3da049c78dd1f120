"""Exact per-record gradients of LoRA and plain linear layers, at the cost of the summed ones.

With x (B, T, d_in) entering and g (B, T, d_out) leaving a linear layer, the gradient of one
record's loss by the weight is gᵀx over that record's own positions. One `bmm` makes it for
the whole batch, with exactly the multiplications of the summed weight gradient, which is not
computed. Every layer writes its block of one (B, P) buffer, the smaller of its two dimensions
first: for lora_B that is the transposed gradient, which a `bmm` writes several times faster.
Where only something linear in the gradients is wanted, each layer's block is handed over as it is
made (`stream`), and no more than one is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from fedpriv.errors import NotPrivateError
from fedpriv.gradients.engine import Losses, Take, backward, row_type
from fedpriv.gradients.mixing import refuse_mixing
from fedpriv.gradients.product import FrozenLinear, weight_of
from fedpriv.gradients.recording import RecordingLinear, RecordingLora, Term, terms_of


@dataclass
class _Block:
    """One layer's columns of the buffer."""

    name: str
    start: int
    rows: int
    columns: int
    transposed: bool
    bias_start: int | None
    written: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def width(self) -> int:
        """Features that leave the layer: values of its bias."""
        return self.columns if self.transposed else self.rows


class PerSampleGradients:
    """Computes rows of per-record gradients of whatever in a model is trainable.

    Only `nn.Linear` layers may be trainable (the two matrices of LoRA are such layers, and
    so are classification heads). While attached, their forward pass goes through an
    autograd function that writes the records' gradients and returns none for the weight;
    `detach` puts everything back.

    Args:
        model: in evaluation mode while rows are computed, so that no dropout mask and no
            batch statistic ties records together.

    Attributes:
        size: P, the number of trained parameters.

    Raises:
        NotPrivateError: something trainable is not a linear layer, or a layer mixes records.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_mixing(model)
        self._model = model
        self._blocks: dict[str, _Block] = {}
        self._buffer: Tensor | None = None
        self._take: Take | None = None
        self._batch = 0
        self._patched: list[nn.Module] = []
        self.size = 0
        for name, module in model.named_modules():
            trained = {k for k, p in module.named_parameters(recurse=False) if p.requires_grad}
            if not trained:
                continue
            if type(module) is not nn.Linear or "weight" not in trained:
                raise NotPrivateError(
                    f"{name}.{min(trained)}: per-record gradients of a trainable"
                    f" {type(module).__name__} can't be computed exactly."
                    ' Train LoRA matrices and linear heads only, or set compute.engine = "opacus".'
                )
            self._add(name, module, with_bias="bias" in trained)
        if not self._blocks:
            raise NotPrivateError("Nothing in the model is trainable: attach an adapter first.")
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._order = [name for name, _ in named]
        self._trained = [p for _, p in named]
        self._attach()

    def _add(self, name: str, module: nn.Linear, with_bias: bool) -> None:
        out_features, in_features = module.weight.shape
        transposed = out_features > in_features
        rows, columns = sorted((out_features, in_features))
        block = _Block(
            name=name,
            start=self.size,
            rows=rows,
            columns=columns,
            transposed=transposed,
            bias_start=self.size + rows * columns if with_bias else None,
        )
        self._blocks[name] = block
        self.size = block.stop + (out_features if with_bias else 0)

    def _attach(self) -> None:
        """Give every linear layer a forward pass of ours; of a LoRA layer, the outermost."""
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
                self._replace(module, self._fused(module.base_layer, own))
            elif name in self._blocks:
                self._replace(module, self._recording(module, self._blocks[name]))
            elif type(module) in (nn.Linear, Conv1D):
                self._replace(module, self._frozen(module))

    def _with_blocks(self, term: Term[_Block], names: dict[nn.Module, str]) -> Term[_Block]:
        of_a, of_b = (self._blocks.get(names[layer]) for layer in (term.a, term.b))
        return replace(term, blocks=(of_a, of_b))

    def _replace(self, module: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
        module.forward = forward
        self._patched.append(module)

    def _recording(self, module: Any, block: _Block) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            weight, bias = module.weight, module.bias
            return _apply(RecordingLinear, x, weight, bias, self._record, block)

        return forward

    def _fused(self, base: Any, terms: list[Term[_Block]]) -> Callable[[Tensor], Tensor]:
        layers = [layer for term in terms for layer in (term.a, term.b)]

        def forward(x: Tensor) -> Tensor:
            matrices = [layer.weight for layer in layers]
            weight = weight_of(base)
            return _apply(RecordingLora, x, weight, base.bias, self._record, terms, *matrices)

        return forward

    def _frozen(self, module: Any) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            return _apply(FrozenLinear, x, weight_of(module), module.bias)

        return forward

    def rows(self, losses: Losses, batch_size: int) -> Tensor:
        """As `GradientEngine.rows`, in a buffer of its own."""
        buffer = self._buffer
        if buffer is None or buffer.shape[0] < batch_size or buffer.device != self.device:
            self._buffer = buffer = torch.empty(
                batch_size, self.size, dtype=self.dtype, device=self.device
            )
        for block in self._blocks.values():
            block.written = False
        self._batch = batch_size
        backward(self._model, losses, batch_size)
        rows = buffer[:batch_size]
        for block in self._blocks.values():
            if not block.written:  # the layer was not used: its gradient is zero
                rows[:, block.start : block.stop].zero_()
                if block.bias_start is not None:
                    rows[:, block.bias_start : block.bias_start + block.width].zero_()
        return rows

    def stream(self, losses: Losses, batch_size: int, take: Take) -> None:
        """As `GradientEngine.stream`; no more than one block is held."""
        self._take = take
        try:
            self._batch = batch_size
            backward(self._model, losses, batch_size)
        finally:
            self._take = None

    @property
    def device(self) -> torch.device:
        """Where the rows are made."""
        return self._trained[0].device

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows: float32, or float64 for a float64 model."""
        return row_type(self._trained[0])

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The first column of each block, and how many it has, as `stream` hands them over."""
        found = []
        for block in self._blocks.values():
            found.append((block.start, block.stop - block.start))
            if block.bias_start is not None:
                found.append((block.bias_start, block.width))
        return found

    def _record(self, block: _Block, x: Tensor, g: Tensor) -> None:
        batch = self._batch
        if x.shape[0] != batch or x.ndim < 2:
            raise NotPrivateError(
                f"{block.name}: was fed a tensor of shape {tuple(x.shape)} in a batch of {batch},"
                " so its gradient can't be told apart by record."
            )
        x = x.reshape(batch, -1, x.shape[-1]).to(self.dtype)  # (B, T, d_in)
        g = g.reshape(batch, -1, g.shape[-1]).to(self.dtype)  # (B, T, d_out)
        left, right = (x, g) if block.transposed else (g, x)
        if self._take is not None:
            self._take(block.start, torch.bmm(left.transpose(1, 2), right).flatten(1))
            if block.bias_start is not None:
                self._take(block.bias_start, g.sum(1))
            return
        assert self._buffer is not None
        view = self._buffer[:batch, block.start : block.stop]
        view = view.view(batch, block.rows, block.columns)
        bias = None
        if block.bias_start is not None:
            bias = self._buffer[:batch, block.bias_start : block.bias_start + g.shape[-1]]
        if block.written:
            view.baddbmm_(left.transpose(1, 2), right)
            if bias is not None:
                bias.add_(g.sum(1))
        else:
            torch.bmm(left.transpose(1, 2), right, out=view)
            if bias is not None:
                torch.sum(g, 1, out=bias)
        block.written = True

    def natural(self, vector: Tensor) -> Tensor:
        """A vector (P,) in buffer order, in the order of `TrainableVector`."""
        parts = []
        for name in self._order:
            layer, _, kind = name.rpartition(".")
            block = self._blocks[layer]
            if kind == "bias":
                assert block.bias_start is not None
                parts.append(vector[block.bias_start : block.bias_start + block.width])
            else:
                matrix = vector[block.start : block.stop].view(block.rows, block.columns)
                parts.append((matrix.T if block.transposed else matrix).reshape(-1))
        return torch.cat(parts)

    def ordered(self, vector: Tensor) -> Tensor:
        """A vector (P,) in the order of `TrainableVector`, in buffer order: undoes `natural`."""
        place = self.natural(torch.arange(self.size))
        return torch.empty_like(vector).index_copy_(0, place, vector)

    def detach(self) -> None:
        """Give the layers their own forward pass back and drop the buffer."""
        for module in self._patched:
            del module.forward
        self._patched.clear()
        self._buffer = None


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    result: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result
