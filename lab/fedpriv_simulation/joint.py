"""Compute the sampled records of several simulated sites in one batch.

A small clinic samples one or two notes a round, and products of one note at a time leave a
processor half idle. Batch invariance gives a note's gradient the same bits in a batch with notes of
other sites. Each site still samples, clips and adds noise by itself. Only a simulation of public
records shares batches, and no module that a site imports knows about it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fedpriv.config.job import JobConfig
from fedpriv.data.batch import Batch
from fedpriv.models.vector import TrainableVector, Vector, check_vector
from fedpriv.private_training.batch_invariance import batches_of, invariant_sizes
from fedpriv.private_training.microbatch import public_microbatch
from fedpriv.private_training.pool import Inspect, WorkerPool
from fedpriv.private_training.worker import ModelRecipe, Worker

MOST_RECORDS = 8  # records in a batch; more are hardly faster, and take longer to try
MOST_SITES = 24  # sites at once; more have no more to compute, and disturb each other
HELD = 2**31  # bytes of sums and noise that these threads may hold together
EACH = 32  # bytes of a thread for each trained value


def sites_at_once(config: JobConfig, trained: int, workers: int) -> int:
    """Return how many sites of a simulation share batches, or `workers` where none do.

    Batches are shared where a round asks every site for the gradients of a sample at the same
    values, and the job's records are public.
    """
    privacy, job = config.privacy, config.job
    together = (
        job.data_is_public
        and job.method == "dp-lora"
        and job.sync == 1
        and privacy.numerics == "default"
        and config.evaluation.sites is None
        and config.compute.devices == 1
    )
    fitting = min(len(config.sites), MOST_SITES, HELD // (EACH * trained))
    return max(workers, fitting) if together else workers


class JointPool(WorkerPool):
    """Lend places in joint batches, which the workers of another pool compute.

    Args:
        pool: the pool of the real workers.
        places: how many sites may borrow at once.
    """

    def __init__(self, pool: WorkerPool, places: int) -> None:
        super().__init__(places, many_sites=True)
        self._pool = pool
        self._changed, self._trying = threading.Condition(), threading.Lock()
        self._waiting: list[_Asked] = []
        self._idle = pool.size
        self._first: dict[ModelRecipe, _Place] = {}
        self._sizes: dict[tuple[ModelRecipe, int, int], Sequence[int]] = {}

    @contextmanager
    def borrow(self, recipe: ModelRecipe, look: Inspect | None = None) -> Iterator[Worker]:
        """Lend a worker as `WorkerPool.borrow` does. Nobody waits for another."""
        with self._changed:
            if recipe not in self._first:
                with self._pool.borrow(recipe, look) as worker:
                    self._first[recipe] = _Place(worker, self._rows)
        yield _Place(self._first[recipe], self._rows)

    def _rows(self, recipe: ModelRecipe, values: Vector, batch: Batch) -> Tensor:
        """Return the gradients of a site's records, (B, P), computed beside those of others.

        If a site's thread finds a worker idle, it computes for all that wait, until its own records
        are done.
        """
        own = _Asked(recipe, values, batch)
        with self._changed:
            self._waiting.append(own)
            while own.found is None:
                if not self._idle or not self._waiting:
                    self._changed.wait()
                    continue
                part = self._next()
                self._idle -= 1
                self._changed.release()
                try:
                    self._compute(part)
                finally:
                    self._changed.acquire()
                    self._idle += 1
                    self._changed.notify_all()
        if isinstance(own.found, Exception):
            raise own.found
        return own.found

    def _next(self) -> list[_Asked]:
        """Take from the waiting records those that fit into one batch with the first."""
        part: list[_Asked] = []
        first, records = self._waiting[0], 0
        most = self._most(first.recipe)
        for asked in list(self._waiting):
            if first.fits(asked) and (not part or records + len(asked.batch) <= most):
                self._waiting.remove(asked)
                part.append(asked)
                records += len(asked.batch)
        return part

    def _most(self, recipe: ModelRecipe) -> int:
        return self._first[recipe].microbatches["private"]

    def _compute(self, part: list[_Asked]) -> None:
        """Fill in the gradients, or for each site the error of its own records."""
        first = part[0]
        try:
            with self._pool.borrow(first.recipe) as worker:
                rows = self._gradients(worker, part)
            ends = np.cumsum([len(asked.batch) for asked in part])
            for asked, end in zip(part, ends, strict=True):
                asked.found = rows[end - len(asked.batch) : end].clone()
        except Exception as error:
            if len(part) == 1:
                first.found = error
                return
            for asked in part:
                self._compute([asked])

    def _gradients(self, worker: Worker, part: list[_Asked]) -> Tensor:
        ids, masks, labels = (
            torch.cat([getattr(asked.batch, name) for asked in part])
            for name in ("input_ids", "attention_mask", "labels")
        )
        worker.vector.write(part[0].values)
        sizes = self._sizes_of(worker, ids.shape[1])
        found = []
        with worker.unobserved():
            for places, kept in batches_of(sizes, len(ids)):
                rows = worker.record_gradients(Batch(ids[places], masks[places], labels[places]))
                found.append(rows[:kept])
        return torch.cat(found)

    def _sizes_of(self, worker: Worker, length: int) -> Sequence[int]:
        """Return batch sizes that give a record the bits that it has alone, on a CPU."""
        key = (worker.recipe, length, torch.get_num_threads())
        if key in self._sizes:  # nobody waits while another length is tried
            return self._sizes[key]
        with self._trying:
            if key not in self._sizes:
                sizes = invariant_sizes(worker, self._most(worker.recipe), length)
                # On a GPU, a batch of one is often the one that differs.
                same = 1 in sizes or worker.device != "cpu"
                self._sizes[key] = sizes if same else (1,)
            return self._sizes[key]


class _Asked:
    """Hold the records of one site that wait for their gradients."""

    def __init__(self, recipe: ModelRecipe, values: Vector, batch: Batch) -> None:
        self.recipe, self.values, self.batch = recipe, values, batch
        self.found: Tensor | Exception | None = None

    def fits(self, other: _Asked) -> bool:
        """Tell whether both fit into one batch: the same length, at the same values."""
        return (
            self.recipe == other.recipe
            and self.batch.input_ids.shape[1] == other.batch.input_ids.shape[1]
            and np.array_equal(self.values, other.values)
        )


class _Place(Worker):
    """A worker as a site borrows it: all that is public, and gradients from joint batches."""

    def __init__(
        self, worker: Worker, rows: Callable[[ModelRecipe, Vector, Batch], Tensor]
    ) -> None:
        vars(self).update(vars(worker))
        vars(self).pop("model", None)  # the model has other values than a site has written
        self._rows = rows
        self.vector = self._written = _Values(worker.vector, worker.initial)
        most = min(MOST_RECORDS, public_microbatch(worker))
        self.microbatches = {"private": most, "public": most}
        self.invariant_sizes = _AnySize()

    def record_gradients(self, batch: Batch) -> Tensor:
        """Compute the gradients as `Worker` does."""
        return self._rows(self.recipe, self._written.value, batch)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Do nothing. The worker that computes takes care of it."""
        yield


class _AnySize(dict[tuple[int, int, int], Sequence[int]]):
    """Allow any number of records. Which batch sizes are computed is decided later."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: tuple[int, int, int]) -> Sequence[int]:
        return range(key[0], 0, -1)


class _Values(TrainableVector):
    """Hold the values that a site writes.

    They reach a model when the site's records are computed.
    """

    def __init__(self, vector: TrainableVector, value: Vector) -> None:
        vars(self).update(vars(vector))
        self.value = value

    def read(self) -> Vector:
        """Read as `TrainableVector` does."""
        return self.value

    def write(self, vector: Vector) -> None:
        """Write as `TrainableVector` does."""
        check_vector(vector, self.size)
        self.value = vector
