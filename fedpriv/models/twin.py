"""A second model on the same frozen weights: what is trained is its own, the base is held once."""

from __future__ import annotations

import copy
from typing import Any

from fedpriv.models.base import Base


def twin(base: Base, model: Any) -> tuple[Base, Any]:
    """A base and its model with an adapter once more, to be used by another thread.

    Frozen parameters are the same tensors, so nobody may write to them. Whatever is trained, every
    buffer and the tokenizer, which keeps settings of its last call, are copies.

    Args:
        model: as `fedpriv.models.lora.attach_lora` made it of `base`, with no engine attached: its
            functions would go on computing with the first model.
    """
    frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
    made: tuple[Base, Any] = copy.deepcopy((base, model), dict(frozen))
    return made
