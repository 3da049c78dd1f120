"""A second model on the same frozen weights: what is trained is its own, the base is held once."""

from __future__ import annotations

import copy
from typing import Any

from fedpriv.models.base import Base
from fedpriv.models.packed import Packed


def twin(base: Base, model: Any) -> tuple[Base, Any]:
    """A base and its model with an adapter once more, to be used by another thread.

    Frozen parameters, and what frozen weights in fewer bits are kept as, are the same tensors, so
    nobody may write to them. Whatever is trained, every other buffer and the tokenizer, which keeps
    settings of its last call, are copies.

    Args:
        model: as `fedpriv.models.lora.attach_lora` made it of `base`, with no engine attached: its
            functions would go on computing with the first model.
    """
    frozen: dict[int, Any] = {id(p): p for p in model.parameters() if not p.requires_grad}
    packed = (module for module in model.modules() if isinstance(module, Packed))
    frozen |= {id(codes): codes for weight in packed for codes in weight.buffers()}
    made: tuple[Base, Any] = copy.deepcopy((base, model), frozen)
    return made
