"""A model ready to compute per-record gradients, and a pool that shares a few of them.

A model is loaded once and serves every step. On one machine a few workers serve all sites of
a simulation: a worker holds nothing of a site between two steps but buffers that the next
step overwrites.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedpriv.config.job import ComputeSection, LoraSection, ModelSection
from fedpriv.errors import ConfigError, NotPrivateError
from fedpriv.models.base import Base, load_base
from fedpriv.models.lora import attach_lora
from fedpriv.models.vector import TrainableVector

if TYPE_CHECKING:
    from fedpriv.data.batch import Batch
    from fedpriv.data.encode import Example
    from fedpriv.gradients.per_sample import PerSampleGradients


LONGEST_PROBE = 1024


@dataclass(frozen=True)
class ModelRecipe:
    """Everything that decides which model is trained, and how it is computed."""

    model: ModelSection
    lora: LoraSection
    seed: int
    compute: ComputeSection


class Worker:
    """One copy of the model with its adapter, on a device.

    Attributes:
        base: the base model, its tokenizer and digest.
        model: the PEFT model.
        vector: the flat view of what is trained.
    """

    def __init__(self, recipe: ModelRecipe) -> None:
        self.recipe = recipe
        self.base: Base = load_base(recipe.model, dtype=recipe.compute.dtype, seed=recipe.seed)
        self.model: Any = attach_lora(self.base, recipe.lora, recipe.model.task, seed=recipe.seed)
        self.device = device_of(recipe.compute.device)
        self.model.to(self.device)
        self.vector = TrainableVector(self.model)
        self._gradients: PerSampleGradients | None = None

    @property
    def gradients(self) -> PerSampleGradients:
        """The per-sample engine, attached and probed at first use.

        Raises:
            NotPrivateError: this model's per-record gradients can't be computed exactly.
        """
        from fedpriv.gradients.per_sample import PerSampleGradients

        if self._gradients is None:
            gradients = PerSampleGradients(self.model)
            probe_independence(self, gradients)
            self._gradients = gradients
        return self._gradients

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
        self._size = size
        self._lock = threading.Lock()
        self._made: dict[ModelRecipe, int] = {}
        self._free: dict[ModelRecipe, queue.LifoQueue[Worker]] = {}

    @contextmanager
    def borrow(self, recipe: ModelRecipe) -> Iterator[Worker]:
        """A worker for the time of a `with` block."""
        with self._lock:
            free = self._free.setdefault(recipe, queue.LifoQueue())
            make = free.empty() and self._made.get(recipe, 0) < self._size
            if make:
                self._drop_idle(recipe)
                self._made[recipe] = self._made.get(recipe, 0) + 1
                try:
                    worker = Worker(recipe)
                except BaseException:
                    self._made[recipe] -= 1
                    raise
        if not make:
            worker = free.get()
        try:
            yield worker
        finally:
            free.put(worker)

    def _drop_idle(self, keep: ModelRecipe) -> None:
        """Let go of idle workers of other recipes: a job's model makes room for the next one's."""
        for recipe, free in self._free.items():
            while recipe != keep and not free.empty():
                free.get_nowait()
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


def probe_independence(worker: Worker, gradients: PerSampleGradients) -> None:
    """Check on random tokens that a record's row does not change with the other records.

    The tokens are public randomness, never records. Catches what `refuse_mixing` does not
    know by name; the tolerance is that of the model's arithmetic.

    Raises:
        NotPrivateError: the rows differ.
    """
    import torch

    from fedpriv.data.batch import Batch
    from fedpriv.training.loss import record_losses

    def rows(batch: Batch) -> torch.Tensor:
        return gradients.rows(lambda model: record_losses(model, batch), len(batch))

    config = worker.model.config
    length = min(12, worker.recipe.model.max_length)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (3, length), generator=generator)
    pad = worker.base.tokenizer.pad_token_id
    ids = torch.where(ids == pad, (ids + 1) % config.vocab_size, ids)
    mask = torch.ones_like(ids)
    mask[0, length // 2 :] = 0  # one short record, so that padding is probed too
    ids[0, length // 2 :] = pad
    if worker.recipe.model.task == "classification":
        labels = torch.tensor([0, 1, 0])
    else:
        labels = torch.where(mask == 1, ids, -100)
    original = worker.vector.read()
    disturbed = torch.randn(worker.vector.size, generator=generator) * 0.02
    worker.vector.write(original + disturbed.numpy())  # a fresh lora_B is 0 and hides errors
    batch = Batch(ids, mask, labels).to(worker.device)
    single = [slice(i, i + 1) for i in range(3)]
    alone = [
        rows(Batch(batch.input_ids[i], batch.attention_mask[i], batch.labels[i])).clone()
        for i in single
    ]
    together = rows(batch).clone()
    longest = min(worker.recipe.model.max_length, LONGEST_PROBE)
    long = torch.full((1, longest), int(ids[1, 0]), device=worker.device)
    rows(
        Batch(
            long, torch.ones_like(long), labels[:1].to(worker.device) if labels.ndim == 1 else long
        )
    )
    again = rows(batch)
    worker.vector.write(original)
    expected = torch.cat(alone)
    error = float((together - expected).norm(dim=1).max() / expected.norm(dim=1).max())
    if not torch.equal(together, again):
        error = float("inf")  # a longer record in between left something behind
    tolerance = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 5e-2}[worker.recipe.compute.dtype]
    if not error <= tolerance:
        raise NotPrivateError(
            f"A record's gradient changes with the other records of its batch (relative"
            f" difference {error:.1e}), so {config.model_type} can't be trained privately here."
        )
