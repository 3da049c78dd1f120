"""One copy of a model, ready to compute per-record gradients.

A worker holds nothing of a site between two steps but buffers that the next step overwrites.
`fedpriv.private_training.pool` makes workers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedpriv.data.batch import Batch, collate
from fedpriv.data.encode import Example
from fedpriv.errors import ConfigError
from fedpriv.gradients.engine import GradientEngine, gradients_of
from fedpriv.gradients.onlookers import hooks_of, refuse_onlookers
from fedpriv.gradients.remembered import Remembered
from fedpriv.models.base import Base
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.models.trial import around, ordinary_tokens
from fedpriv.models.vector import TrainableVector
from fedpriv.private_training.config import ComputeSection
from fedpriv.private_training.record_loss import IGNORED, record_losses

log = logging.getLogger(__name__)
# Sizes of batches by the most records, the padded length, and the threads.
InvariantSizes = dict[tuple[int, int, int], Sequence[int]]


@dataclass(frozen=True)
class ModelRecipe:
    """Everything that decides which model is trained, and how it is computed."""

    model: ModelSection
    lora: LoraSection
    seed: int
    compute: ComputeSection


class Worker:
    """One copy of the model with its adapter, on a device.

    Args:
        model: the PEFT model, on its device.
        gradients: the per-sample engine, attached to it.

    Attributes:
        base: the base model, its tokenizer and digest.
        vector: the flat view of what is trained; each borrower leaves its own values in it.
        initial: the values before any training, (P,), by the recipe's seed.
        failures: errors that steps went on after, by name: units that counted as 0, steps of
            noise alone. Private: it depends on the records, and stays in this process.
        microbatches: records to compute at once, as `microbatch` found out; the
            workers of a pool share it.
        is_settled: whether all trials are done; records of an untried length are computed alone.
        invariant_sizes: what `batch_invariance` found out; the workers of a pool
            share it.
        public: what was made of public records and released values alone, by name, for the next
            site of a simulation.
        resources: closed with the worker.
    """

    def __init__(
        self, recipe: ModelRecipe, base: Base, model: Any, gradients: GradientEngine
    ) -> None:
        self.recipe, self.base, self.model, self.gradients = recipe, base, model, gradients
        self.device = str(gradients.device)
        self.vector = TrainableVector(model)
        self.initial = self.vector.read()
        self.failures: Counter[str] = Counter()
        self.microbatches: dict[str, int] = {}
        self.is_settled = False
        self.invariant_sizes: InvariantSizes = {}
        self.public: dict[str, Any] = {}
        self.resources = ExitStack()
        self._own_hooks = frozenset(hook for _, hook in hooks_of(model))  # the engine's
        self._remembered = Remembered(model)

    def refuse_onlookers(self) -> None:
        """Refuse onlookers as `refuse_onlookers` does, except the hooks of the engine.

        Raises:
            NotPrivateError: somebody looks on.
        """
        refuse_onlookers(self.model, self._own_hooks)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Let nobody look on in a `with` block, and leave nothing of the block in the model.

        Raises:
            NotPrivateError: somebody looks on; nothing was computed.

        Privacy:
            All that is computed from private records is computed in such a block.
        """
        self.refuse_onlookers()
        if self._remembered.changed():  # somebody else changed it meanwhile
            self._remembered = Remembered(self.model)
        try:
            yield
        finally:
            self._remembered.put_back()

    def batch(self, examples: Sequence[Example], length: int) -> Batch:
        """Pad examples to `length` on the right, on the model's device.

        The side that the tokenizer pads for generating doesn't matter: positions count from the
        first token, and no token attends to nothing.
        """
        tokenizer: Any = self.base.tokenizer
        return collate(examples, tokenizer.pad_token_id, length).to(self.device)

    def random_batch(self, mask: Tensor, *, seed: int) -> Batch:
        """Make one record for each row of a mask (B, T), with tokens where it is 1.

        The records serve for trials that must not be made on private ones.

        Args:
            seed: public; the same one gives the same records.

        Privacy:
            Made of public settings alone.
        """
        tokenizer: Any = self.base.tokenizer
        tokens = ordinary_tokens(self.base.model, tokenizer)
        generator = torch.Generator().manual_seed(seed)
        ids = tokens[torch.randint(len(tokens), mask.shape, generator=generator)]
        for last in around(tokenizer)[1][-1:]:  # some models find a text's end by it
            ids[torch.arange(len(ids)), mask.sum(1) - 1] = last
        ids = torch.where(mask == 1, ids, tokenizer.pad_token_id)
        if self.recipe.model.task == "classification":
            labels = torch.arange(len(mask)) % 2
        else:
            labels = torch.where(mask == 1, ids, IGNORED)
        return Batch(ids, mask, labels).to(self.device)

    def record_gradients(self, batch: Batch) -> Tensor:
        """Return the gradient of each record's own loss, (B, P), at the values that were written.

        Privacy:
            Every row is private. None may leave the site.
        """
        return gradients_of(self.gradients, partial(record_losses, batch=batch), len(batch))

    def went_on_after(self, error: Exception, what: str) -> None:
        """Count an error. Log it once: a line each time would tell when a unit was sampled.

        Args:
            what: what happens then, as a sentence.
        """
        kind = type(error).__name__
        if not self.failures[kind]:
            log.warning("%s: %s", what, kind)
        self.failures[kind] += 1

    def close(self) -> None:
        """Release what belongs to the worker, such as the processes that share its steps."""
        self.resources.close()


def device_of(name: str) -> str:
    """Return the device of a setting: ``auto`` is CUDA where there is one.

    Raises:
        ConfigError: there is no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        problem = f"no such device here: {str(error).splitlines()[0]}"
        fix = "Use auto or cpu."
        raise ConfigError(problem, key="compute.device", value=name, fix=fix) from None
    return name
