"""Run several workers on the same frozen weights. Each has its own trained values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fedpriv.models.base import Base
from fedpriv.models.packed import Packed
from fedpriv.plugins import load_part
from fedpriv.private_training.pool import Inspect, WorkerPool, load_model
from fedpriv.private_training.worker import ModelRecipe, Worker


class SharedBasePool(WorkerPool):
    """A pool for several threads. All workers of a recipe compute with one base.

    Each has for itself what is trained, and what a step holds. The base is dropped with its
    workers.
    """

    def __init__(self, size: int, *, many_sites: bool = False) -> None:
        super().__init__(size, many_sites=many_sites)
        self._loaded: dict[ModelRecipe, tuple[Base, Any]] = {}

    @contextmanager
    def borrow(self, recipe: ModelRecipe, look: Inspect | None = None) -> Iterator[Worker]:
        """Lend a worker as `WorkerPool.borrow` does. A base that is refused is not kept."""
        try:
            with super().borrow(recipe, look) as worker:
                yield worker
        except BaseException:
            with self._lock:
                self._forget_unused()
            raise

    def _load(self, recipe: ModelRecipe) -> tuple[Base, Any]:
        """Copy a model that is kept and never trained, before any function of it is replaced."""
        if self.size == 1:
            return load_model(recipe)
        if recipe not in self._loaded:
            plain = recipe.compute.model_copy(update={"gradient_checkpointing": False})
            self._loaded[recipe] = load_model(replace(recipe, compute=plain))
        base, model = twin(*self._loaded[recipe])
        if recipe.compute.gradient_checkpointing:
            load_part("compute.gradient_checkpointing")(model)
        return base, model

    def _drop_idle(self, keep: ModelRecipe) -> None:
        super()._drop_idle(keep)
        self._forget_unused()

    def _forget_unused(self) -> None:
        self._loaded = {made: one for made, one in self._loaded.items() if self._made.get(made)}


def twin(base: Base, model: Any) -> tuple[Base, Any]:
    """Make a second copy of a base and its model with an adapter, for another thread.

    Frozen parameters, and the codes of frozen weights in fewer bits, are the same tensors, so
    nobody may write to them. Trained values, every other buffer and the tokenizer are copies. (The
    tokenizer keeps settings of its last call.)

    Args:
        model: the model as `fedpriv.models.lora.attach_lora` made it from `base`. No engine may be
            attached, because its functions would go on computing with the first model.
    """
    frozen: dict[int, Any] = {id(p): p for p in model.parameters() if not p.requires_grad}
    packed = (module for module in model.modules() if isinstance(module, Packed))
    frozen |= {id(codes): codes for weight in packed for codes in weight.buffers()}
    made: tuple[Base, Any] = copy.deepcopy((base, model), frozen)
    return made
