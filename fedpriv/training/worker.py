"""A model ready to compute per-record gradients, and a pool that shares a few of them.

A model is loaded once and serves every step. On one machine a few workers serve all sites of
a simulation: a worker holds nothing of a site between two steps but buffers that the next
step overwrites.
"""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.config.job import ComputeSection, JobConfig, LoraSection, ModelSection
from fedpriv.errors import ConfigError
from fedpriv.heap import keep_freed_memory, share_heap
from fedpriv.models.base import Base, load_base
from fedpriv.models.checkpointing import checkpoint_layers
from fedpriv.models.lora import attach_lora
from fedpriv.models.mixed import halve_frozen_products
from fedpriv.models.vector import TrainableVector

if TYPE_CHECKING:
    from fedpriv.data.batch import Batch
    from fedpriv.data.encode import Example
    from fedpriv.gradients.engine import GradientEngine
    from fedpriv.training.team import Team


Steady = dict[tuple[int, int, int], Sequence[int]]  # by most records, padded length, and threads


@dataclass(frozen=True)
class ModelRecipe:
    """Everything that decides which model is trained, and how it is computed."""

    model: ModelSection
    lora: LoraSection
    seed: int
    compute: ComputeSection

    @classmethod
    def of(cls, config: JobConfig) -> ModelRecipe:
        """The model of a federation file."""
        return cls(config.model, config.lora, config.job.seed, config.compute)


class Worker:
    """One copy of the model with its adapter, on a device.

    Attributes:
        base: the base model, its tokenizer and digest.
        model: the PEFT model.
        vector: the flat view of what is trained; whoever borrows a worker leaves its own values.
        initial: the values before any training, (P,), by the recipe's seed.
        failures: errors that steps went on after, by name: units that counted as 0, steps of
            noise alone. Private: it depends on the records, and stays in this process.
        steady: what `steady_sizes` found; those of a pool have it together.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        self.recipe = recipe
        self.base: Base = load_base(recipe.model, dtype=recipe.compute.dtype, seed=recipe.seed)
        self.model: Any = attach_lora(self.base, recipe.lora, recipe.model.task, seed=recipe.seed)
        self.device = device_of(recipe.compute.device)
        if recipe.compute.gradient_checkpointing:
            checkpoint_layers(self.model)
        if recipe.compute.dtype == "mixed":
            halve_frozen_products(self.model)
        self.model.to(self.device)
        self.vector = TrainableVector(self.model)
        self.initial = self.vector.read()
        self.failures: Counter[str] = Counter()
        self.steady: Steady = {}
        self._gradients: GradientEngine | None = None
        self._fits = recipe.compute.microbatch
        self._at_once: int | None = None
        self._team: Team | None = None
        if recipe.compute.dtype == "mixed":
            _ = self.gradients  # nothing else can compute with such weights

    @property
    def gradients(self) -> GradientEngine:
        """The per-sample engine, attached and probed at first use.

        Raises:
            NotPrivateError: this model's per-record gradients can't be computed exactly.
        """
        from fedpriv.gradients.opacus import OpacusGradients
        from fedpriv.gradients.per_sample import PerSampleGradients
        from fedpriv.training.probe import probe_independence

        if self._gradients is None:
            share_heap()
            keep_freed_memory()
            kind: Callable[[Any], GradientEngine] = PerSampleGradients
            if self.recipe.compute.engine == "opacus":
                kind = OpacusGradients
            gradients = kind(self.model)
            probe_independence(self, gradients)
            self._gradients = gradients
        return self._gradients

    @property
    def team(self) -> Team | None:
        """The processes that share this worker's steps, begun at first use; None if it is alone.

        Raises:
            ConfigError: there are fewer devices than ``compute.devices``.
        """
        from fedpriv.training.team import Team

        if self._team is None and self.recipe.compute.devices > 1:
            self._team = Team(self.recipe, self.device)
        return self._team

    def close(self) -> None:
        """Let the team go, if there is one."""
        if self._team is not None:
            self._team.close()
            self._team = None

    @property
    def fits(self) -> int:
        """Public records to compute at once: what the recipe says, or what fits.

        Found out without any record, so that what depends on it is public.
        """
        from fedpriv.training.microbatch import records_that_fit

        if self._fits is None:
            self._fits = records_that_fit(self)
        return self._fits

    @property
    def at_once(self) -> int:
        """Private records to compute at once, whatever memory there is later.

        Found out without any record, too: how many they are decides the last bits of their rows.
        """
        from fedpriv.training.microbatch import records_at_once

        if self._at_once is None:
            self._at_once = records_at_once(self)
        return self._at_once

    def batch(self, examples: Sequence[Example], length: int) -> Batch:
        """Examples padded to `length` on the right, on the model's device.

        Whatever side the tokenizer pads for generating: positions then count from the first
        token, and no token attends to nothing.
        """
        from fedpriv.data.batch import collate

        tokenizer: Any = self.base.tokenizer
        return collate(examples, tokenizer.pad_token_id, length).to(self.device)


class WorkerPool:
    """At most `size` workers per recipe, made when first asked for; idle ones of others go.

    A thread that finds none free waits for one.
    """

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._made: dict[ModelRecipe, int] = {}
        self._free: dict[ModelRecipe, queue.LifoQueue[Worker]] = {}
        self._steady: dict[ModelRecipe, Steady] = {}

    @contextmanager
    def borrow(self, recipe: ModelRecipe) -> Iterator[Worker]:
        """A worker for the time of a `with` block."""
        with self._lock:
            free = self._free.setdefault(recipe, queue.LifoQueue())
            make = free.empty() and self._made.get(recipe, 0) < self.size
            if make:
                self._drop_idle(recipe)
                self._made[recipe] = self._made.get(recipe, 0) + 1
                try:
                    worker = Worker(recipe)
                    worker.steady = self._steady.setdefault(recipe, {})
                except BaseException:
                    self._made[recipe] -= 1
                    raise
        if not make:
            worker = free.get()
        try:
            yield worker
        finally:
            free.put(worker)

    def close(self) -> None:
        """Let go of the teams of idle workers; whoever borrows one again begins another."""
        with self._lock:
            for free in self._free.values():
                for worker in list(free.queue):
                    worker.close()

    def _drop_idle(self, keep: ModelRecipe) -> None:
        """Let go of idle workers of other recipes: a job's model makes room for the next one's."""
        for recipe, free in self._free.items():
            while recipe != keep and not free.empty():
                free.get_nowait().close()
                self._made[recipe] -= 1


def device_of(name: str) -> str:
    """The device of a setting: ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: there is no such device.
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"no such device here: {str(error).splitlines()[0]}",
            key="compute.device",
            value=name,
            fix="Use auto or cpu.",
        ) from None
    return name
