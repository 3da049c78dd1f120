"""Compute several adapters on one base in one pass: each row of a batch has its own adapter.

A batch of B texts becomes B·K rows, one for each of K adapters. The rows of a text follow each
other. So the base's weights are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

FEW = 16  # number of rows whose product takes about as long as reading the weights


class AdapterRows(nn.Module):
    """A linear layer with another LoRA adapter for each row: y = W x + s B_k A_k x.

    Args:
        layer: peft's layer, with all adapters.
        names: names of the adapters, in the order of the rows.
        pack: keep the base's weights in the layout in which oneDNN multiplies few rows.
    """

    def __init__(self, layer: Any, names: Sequence[str], *, pack: bool) -> None:
        super().__init__()
        base = layer.get_base_layer()
        kind = base.weight.dtype
        self.base: nn.Module = PackedLinear(base, len(names)) if pack else base
        down = [layer.lora_A[name].weight.detach().T for name in names]
        up = [layer.lora_B[name].weight.detach().T * layer.scaling[name] for name in names]
        # (K, in, r) and (K, r, out)
        self.down = nn.Parameter(torch.stack(down).to(kind).contiguous(), requires_grad=False)
        self.up = nn.Parameter(torch.stack(up).to(kind).contiguous(), requires_grad=False)

    @property
    def weight(self) -> Tensor:
        """Return the base's weight, for models that use it without the layer."""
        return self.base.weight  # type: ignore[return-value]

    @property
    def bias(self) -> Tensor | None:
        """Return the base's bias, as `weight`."""
        return self.base.bias  # type: ignore[return-value]

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows, (B·K, ..., in)."""
        count = len(self.down)
        found: Tensor = self.base(rows)
        split = rows.reshape(-1, count, rows[0].numel() // rows.shape[-1], rows.shape[-1])
        if len(split) == 1:
            whole = found.view(count, -1, found.shape[-1])
            return torch.baddbmm(whole, torch.bmm(split[0], self.down), self.up).view_as(found)
        return found + ((split @ self.down) @ self.up).view_as(found)


class WholeRows(nn.Module):
    """A layer that differs for each adapter, because training changed all of it.

    Args:
        layer: peft's layer, with the layers of all adapters.
        names: names of the adapters, in the order of the rows.
    """

    def __init__(self, layer: Any, names: Sequence[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer.modules_to_save[name] for name in names)

    @property
    def weight(self) -> Tensor:
        """Return the first layer's weight, for models that ask for its type."""
        return self.layers[0].weight  # type: ignore[return-value]

    def forward(self, rows: Tensor) -> Tensor:
        """Send each row through its own layer."""
        count = len(self.layers)
        made = [layer(rows[index::count]) for index, layer in enumerate(self.layers)]
        return torch.stack(made, dim=1).flatten(0, 1)


class PackedLinear(nn.Module):
    """A frozen linear layer on a CPU, in the layout in which oneDNN multiplies few rows.

    A product with three rows then takes as long as one with one row. With torch's own layout it
    takes two to three times as long (`benchmarks/serving.py`).
    """

    def __init__(self, layer: Any, rows: int) -> None:
        super().__init__()
        weight = layer.weight.detach()
        self.turned = not isinstance(layer, nn.Linear)  # as in GPT-2's Conv1D
        if self.turned:
            weight = weight.T.contiguous()
        self.width: int = weight.shape[0]
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        self.bias = None if layer.bias is None else layer.bias.detach()

    @property
    def weight(self) -> Tensor:
        """Return a copy of the weight as the layer had it."""
        found: Tensor = self.packed.to_dense()
        return found.T if self.turned else found

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows, (..., in)."""
        flat = rows.reshape(-1, rows.shape[-1])
        found = torch.ops.mkldnn._linear_pointwise(flat, self.packed, self.bias, "none", [], "")
        return found.view(*rows.shape[:-1], self.width)  # type: ignore[no-any-return]


class SharedOutput(nn.Module):
    """An output layer that shares its weights with the embeddings, which stay as they are."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows, (..., in). With few rows the order of the factors decides the speed."""
        flat = rows.reshape(-1, rows.shape[-1])
        if len(flat) > FEW:
            return nn.functional.linear(rows, self.weight, self.bias)
        found = (self.weight @ flat.T).T
        if self.bias is not None:
            found = found + self.bias
        return found.reshape(*rows.shape[:-1], -1)


class RowsCache(Cache):
    """The base's view of a text's cache: B·K rows, where the cache holds B.

    The keys of a text's K rows lie in the cache as K times as many heads. So the cache stays one of
    transformers' own, and beam search and `crop` handle it as any other.
    """

    def __init__(self, kept: Cache, count: int) -> None:
        self.kept, self.count = kept, count

    @property
    def layers(self) -> Any:  # type: ignore[override]
        """Return the layers of the kept cache, which know their lengths."""
        return self.kept.layers

    def update(
        self, key_states: Tensor, value_states: Tensor, *where: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values (B·K, H, T, D) of a layer, and return all so far."""
        folded = self._fold(key_states), self._fold(value_states)
        keys, values = self.kept.update(*folded, *where, **options)
        return self._unfold(keys), self._unfold(values)

    def update_conv_state(self, conv_states: Tensor, *where: Any, **options: Any) -> Tensor:
        """Keep the state (B·K, C, W) of a convolution, and return it."""
        found = self.kept.update_conv_state(self._fold(conv_states), *where, **options)
        return self._unfold(found)

    def get_conv_state(self, *where: Any, **options: Any) -> Tensor | None:
        """Return the state of a convolution, if there is one."""
        found = self.kept.get_conv_state(*where, **options)
        return None if found is None else self._unfold(found)

    def update_recurrent_state(
        self, recurrent_states: Tensor, *where: Any, **options: Any
    ) -> Tensor:
        """Keep a recurrent state (B·K, ...), and return it."""
        found = self.kept.update_recurrent_state(self._fold(recurrent_states), *where, **options)
        return self._unfold(found)

    def get_recurrent_state(self, *where: Any, **options: Any) -> Tensor | None:
        """Return a recurrent state, if there is one."""
        found = self.kept.get_recurrent_state(*where, **options)
        return None if found is None else self._unfold(found)

    def _fold(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, self.count * rows.shape[1], *rows.shape[2:])

    def _unfold(self, kept: Tensor) -> Tensor:
        return kept.reshape(-1, kept.shape[1] // self.count, *kept.shape[2:])
