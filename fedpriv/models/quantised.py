"""Frozen weights in 8 or 4 bits: how they are stored, and how they are read.

Only how weights are kept is quantised. Whenever a layer is computed, forward or backward, its
weight is made float again, each code times its block's scale, and then multiplied as any other:
activations are never rounded, and no scale is computed from a record. So whatever holds for a model
in float32 holds for this one, bit for bit: it is the model whose weights were rounded once.

The codes are those of bitsandbytes, in blocks of 64 along rows: for 8 bits the dynamic type of
Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022; for 4 bits NF4 of
Dettmers et al., "QLoRA", NeurIPS 2023, without a second quantisation of the scales.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedpriv.environment import without_hub_code
from fedpriv.errors import ConfigError
from fedpriv.models.config import Bits
from fedpriv.models.packed import Packed

if TYPE_CHECKING:
    from types import ModuleType

BLOCK = 64  # weights that share a scale
AT_ONCE = BLOCK << 12  # weights: quantising takes many times their memory


class PackedWeight(Packed):
    """A frozen weight (out, in) as codes, and a scale for each block of `BLOCK`.

    Args:
        weight: (out, in), or (in, out) where the layer keeps it `turned`; a whole number of blocks.

    Attributes:
        shape: as the layer had it, which is what peft asks for.
    """

    codes: Tensor
    scales: Tensor
    table: Tensor

    def __init__(self, weight: Tensor, bits: Bits, *, turned: bool = False) -> None:
        super().__init__()
        self.bits, self.shape, self.dtype = bits, weight.shape, torch.float32
        self._turned = turned
        rows = (weight.t() if turned else weight).detach().cpu()  # the same codes for every site
        parts = [_codes(part.float(), bits) for part in torch.split(rows.reshape(-1), AT_ONCE)]
        codes, scales, tables = zip(*parts, strict=True)
        self.register_buffer("codes", torch.cat(codes).to(weight.device))
        self.register_buffer("scales", torch.cat(scales).to(weight.device))
        self.register_buffer("table", tables[0].to(weight.device))

    @property
    def device(self) -> torch.device:
        """The device of the weight."""
        return self.codes.device

    def unpacked(self) -> Tensor:
        """Return the weight, as `Packed`."""
        functional = bitsandbytes(self.bits)
        # One row per block: if a row ends inside a block, bitsandbytes 0.50 scales wrongly on a
        # CPU.
        state = functional.QuantState(
            self.scales,
            shape=torch.Size((len(self.scales), BLOCK)),
            code=self.table,
            blocksize=BLOCK,
            quant_type="nf4" if self.bits == "4bit" else None,
            dtype=self.dtype,
        )
        four, eight = functional.dequantize_4bit, functional.dequantize_blockwise
        weight: Tensor = (four if self.bits == "4bit" else eight)(self.codes, state)
        return weight.view(self.shape[::-1] if self._turned else self.shape)


def _codes(values: Tensor, bits: Bits) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of some blocks, a scale for each block, and the table of code values."""
    functional = bitsandbytes(bits)
    if bits == "4bit":
        codes, state = functional.quantize_4bit(values, blocksize=BLOCK, quant_type="nf4")
    else:
        codes, state = functional.quantize_blockwise(values, blocksize=BLOCK)
    return codes.reshape(-1), state.absmax, state.code


def pack(model: Any, bits: Bits, whole: Iterable[str] = ()) -> None:
    """Quantise the weights of a model's linear layers, and put everything else into float32.

    Three kinds of layers are not quantised: the output layer, which is often the embeddings; what
    is trained whole; and a layer whose weights fill no whole blocks. A changed model needs a
    `PerSampleGradients` attached before it is used.

    Args:
        whole: names of layers, or ends of them, that are trained whole.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    from transformers.pytorch_utils import Conv1D

    output, names = model.get_output_embeddings(), tuple(whole)
    for name, layer in list(model.named_modules()):
        kept = layer is output or any(f"{part}." in f"{name}." for part in names)
        if type(layer) not in (nn.Linear, Conv1D) or kept:
            continue
        weight = layer.weight
        if weight.numel() % BLOCK == 0:
            del layer.weight
            layer.weight = PackedWeight(weight, bits, turned=type(layer) is not nn.Linear)
    model.float()


class LoadedWeight(Packed):
    """The frozen weight (out, in) of a layer that bitsandbytes quantised while it was loaded."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._of = (layer,)  # a tuple, so that torch does not count it as part of the model
        halved = getattr(layer, "compute_dtype", None) == torch.bfloat16
        self.dtype = torch.bfloat16 if halved else torch.float32

    def unpacked(self) -> Tensor:
        """Return the weight, as `Packed`."""
        from peft.utils.integrations import dequantize_bnb_weight

        [layer] = self._of
        found: Tensor = dequantize_bnb_weight(layer.weight, state=getattr(layer, "state", None))
        return found.to(self.dtype)


@contextmanager
def read_as_numbers(model: Any) -> Iterator[torch.dtype]:
    """Replace layers of bitsandbytes by plain ones with weights as numbers, in a `with` block.

    By itself, bitsandbytes rounds activations by the largest ones of a whole batch (8 bits).

    Yields:
        The type of their products.

    Raises:
        ConfigError: a CPU has put the codes into another order, for generating.
    """
    from peft.tuners import lora

    kept = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, nn.Linear) and type(layer).__module__.startswith("bitsandbytes.")
    ]
    kinds = [(m, type(m)) for m in model.modules() if type(m).__module__ == "peft.tuners.lora.bnb"]
    config, dtype = model.config, torch.float32
    said = vars(config).pop("quantization_config")
    try:
        for parent, name, layer in kept:
            if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
                problem = "has generated on this CPU, which put its codes into another order"
                fix = "Load it again, and generate only after the steps."
                raise ConfigError(problem, key="model", fix=fix)
            plain: Any = nn.Linear(layer.in_features, layer.out_features, device="meta")
            del plain.weight
            vars(plain)["weight"] = weight = LoadedWeight(layer)  # a child would hide it from hooks
            plain.bias, plain.forward, dtype = layer.bias, partial(_multiplied, plain), weight.dtype
            setattr(parent, name, plain)
        for module, _ in kinds:
            module.__class__ = lora.Linear
        yield dtype
    finally:
        config.quantization_config = said
        for module, kind in kinds:
            module.__class__ = kind
        for parent, name, layer in kept:
            setattr(parent, name, layer)


def _multiplied(layer: Any, x: Tensor) -> Tensor:
    return nn.functional.linear(x, layer.weight.unpacked().to(x.dtype), layer.bias)


def unpack(model: nn.Module) -> None:
    """Give a packed model plain weights again: those that it computed with."""
    for layer in list(model.modules()):
        packed = dict(layer.named_children()).get("weight")
        if isinstance(packed, PackedWeight):
            weight = packed.unpacked()
            if type(layer) is not nn.Linear:
                weight = weight.t()
            del layer.weight
            layer.weight = nn.Parameter(weight, requires_grad=False)


def round_weights(model: Any, bits: Bits) -> None:
    """Give a model in full the weights that it has in 8 or 4 bits, as plain numbers.

    An adapter that was trained beside a quantised base belongs beside these.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    pack(model, bits)
    unpack(model)


def bitsandbytes(bits: Bits) -> ModuleType:
    """Import `bitsandbytes.functional`, which computes codes.

    Raises:
        ConfigError: it is not installed.
    """
    known = sys.modules.get("bitsandbytes.functional")
    if known is not None:
        return known
    with without_hub_code():
        try:
            import bitsandbytes.functional
        except ImportError:
            problem = "needs bitsandbytes, which is not installed"
            fix = "Type: pip install 'fedpriv[quantized]'."
            raise ConfigError(problem, key="model.quantize", value=bits, fix=fix) from None
    return bitsandbytes.functional
