"""Make workers, and lend them.

A model is loaded once and serves every step. On one machine a few workers serve all sites of a
simulation.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedpriv.errors import ConfigError, FedprivError, ModelError, NotPrivateError
from fedpriv.gradients.engine import GradientEngine
from fedpriv.gradients.onlookers import refuse_onlookers
from fedpriv.gradients.per_sample import PerSampleGradients, unknown
from fedpriv.heap import keep_freed_memory, share_heap
from fedpriv.models.base import Base, first_line, load_base
from fedpriv.models.lora import attach_lora, trained_whole
from fedpriv.models.outputs import check_outputs
from fedpriv.models.vector import TrainableVector
from fedpriv.plugins import load_part
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.probe import probe_gradients
from fedpriv.private_training.worker import InvariantSizes, ModelRecipe, Worker, device_of

log = logging.getLogger(__name__)
Inspect = Callable[[Base, TrainableVector], None]


def load_model(recipe: ModelRecipe) -> tuple[Base, Any]:
    """Load the base of a recipe, and the model with its adapter, on its device.

    Raises:
        ConfigError: there is no such device, or what computes can't read quantised weights.
        ModelError: the model can't be loaded.
    """
    compute = recipe.compute
    if recipe.model.quantize is not None:
        _check_packed(compute)
    whole = trained_whole(recipe.lora)
    base = load_base(recipe.model, dtype=compute.dtype, seed=recipe.seed, whole=whole)
    model: Any = attach_lora(base, recipe.lora, recipe.model.task, seed=recipe.seed)
    device = device_of(compute.device)
    if compute.dtype == "mixed":
        load_part("compute.dtype.mixed")(model)
    model.to(device)
    if compute.gradient_checkpointing:
        load_part("compute.gradient_checkpointing")(model)
    return base, model


def _check_packed(compute: ComputeSection) -> None:
    """Raise ConfigError if what a server proposes doesn't fit what a site computes with."""
    found = compute.not_beside_quantised()
    if found is not None:
        key, value, known = found
        problem = "can't read the job's quantised weights (model.quantize)"
        fix = f"Use {' or '.join(known)}."
        raise ConfigError(problem, key=f"compute.{key}", value=value, fix=fix)


def make_worker(
    recipe: ModelRecipe,
    look: Inspect | None = None,
    load: Callable[[ModelRecipe], tuple[Base, Any]] = load_model,
) -> Worker:
    """Make a worker whose gradients were tried on random tokens.

    Args:
        look: called with the base and what is trained, before a gradient is computed.
        load: where the model comes from.

    Raises:
        NotPrivateError: this model's per-record gradients can't be computed exactly.
        ConfigError: there is no such device.
        ModelError: the model can't be loaded.
    """
    base, model = load(recipe)
    if look is not None:
        look(base, TrainableVector(model))
    return with_gradients(recipe, base, model)


def with_gradients(recipe: ModelRecipe, base: Base, model: Any) -> Worker:
    """Make a worker of a model that is already loaded.

    Raises:
        NotPrivateError: this model's per-record gradients can't be computed exactly, or a hook or
            the like would see them.
        ModelError, ConfigError: it can't compute them at all, or is not for the task, the labels or
            the tokenizer.
    """
    share_heap()
    keep_freed_memory()
    worker = None
    try:
        refuse_onlookers(model)  # from here on, hooks are those of the engine
        worker = Worker(recipe, base, model, _engine(recipe, model))
        check_outputs(model, base.tokenizer, recipe.model)
        probe_gradients(worker)
    except BaseException as error:
        if worker is not None:
            worker.gradients.detach()  # else somebody else's model would stay changed
        if isinstance(error, FedprivError) or not isinstance(error, Exception):
            raise
        raise ModelError(  # an architecture may fail in any way
            f"model.name: this {model.config.model_type} can't be trained: {first_line(error)}."
            " Take another architecture, or other lora.target_modules."
        ) from error
    return worker


def _engine(recipe: ModelRecipe, model: Any) -> GradientEngine:
    """Choose what makes the gradients: ours, or opacus for a layer that ours has no rule for.

    Raises:
        NotPrivateError: neither can, or only opacus can and settings don't allow it.
    """
    compute, missing = recipe.compute, next(unknown(model), None)
    if compute.engine == "fedpriv" or (compute.engine == "auto" and missing is None):
        return PerSampleGradients(model)
    beside = compute.not_for_opacus if recipe.model.quantize is None else "model.quantize"
    if missing is not None and beside is not None:
        raise NotPrivateError(
            f"{missing[0]}: opacus alone may have a rule for a trainable {missing[1]}, and it can't"
            f" compute with {beside}. Train LoRA matrices and linear heads only."
        )
    engine: GradientEngine = load_part("compute.engine.opacus")(model)
    if compute.engine == "auto" and missing is not None:
        log.info("compute.engine: opacus, as fedpriv has no rule for %s (%s).", *missing)
    return engine


class WorkerPool:
    """Keep at most `size` workers per recipe, made when asked for. Idle ones of other recipes go.

    A thread that finds none free waits for one. Each worker loads a model of its own.

    Args:
        many_sites: sites of a simulation borrow in turn, so that what one made of public records
            stays for the next; otherwise it goes when a worker is given back.
    """

    def __init__(self, size: int = 1, *, many_sites: bool = False) -> None:
        self.size, self._many_sites = size, many_sites
        self._lock = threading.Lock()
        self._made: dict[ModelRecipe, int] = {}
        self._free: dict[ModelRecipe, queue.LifoQueue[Worker]] = {}
        self._invariant: dict[ModelRecipe, InvariantSizes] = {}
        self._microbatches: dict[ModelRecipe, dict[str, int]] = {}

    @contextmanager
    def borrow(self, recipe: ModelRecipe, look: Inspect | None = None) -> Iterator[Worker]:
        """Lend a worker for the time of a `with` block.

        Args:
            look: see `make_worker`; used if a worker is made.
        """
        with self._lock:
            free = self._free.setdefault(recipe, queue.LifoQueue())
            make = free.empty() and self._made.get(recipe, 0) < self.size
            if make:
                self._drop_idle(recipe)
                worker = make_worker(recipe, look, self._load)
                worker.invariant_sizes = self._invariant.setdefault(recipe, {})
                worker.microbatches = self._microbatches.setdefault(recipe, {})
                self._made[recipe] = self._made.get(recipe, 0) + 1
        if not make:
            worker = free.get()
        try:
            yield worker
        finally:
            if not self._many_sites:
                worker.public.clear()
            free.put(worker)

    def close(self) -> None:
        """Release the resources of idle workers. One that is borrowed again begins anew."""
        with self._lock:
            for free in self._free.values():
                for worker in list(free.queue):
                    worker.close()

    def _load(self, recipe: ModelRecipe) -> tuple[Base, Any]:
        return load_model(recipe)

    def _drop_idle(self, keep: ModelRecipe) -> None:
        """Drop idle workers of other recipes: a job's model makes room for the next one's."""
        for recipe, free in self._free.items():
            while recipe != keep and not free.empty():
                free.get_nowait().close()
                self._made[recipe] -= 1
