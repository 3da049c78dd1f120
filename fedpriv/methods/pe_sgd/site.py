"""PE-SGD at a site: the sum of the units' coefficients in the gradients of a synthetic set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.config.synthetic import ProjectionSection
from fedpriv.data.batch import buckets
from fedpriv.gradients.engine import Losses, gathered
from fedpriv.methods.dp_lora.site import DpLora
from fedpriv.methods.pe_sgd.basis import Basis, weighted_gradient
from fedpriv.methods.pe_sgd.projection import Projection, normalised, shortened
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.training.record_loss import record_losses
from fedpriv.training.unit_sum import chunks, sum_of_units

if TYPE_CHECKING:
    from fedpriv.data.batch import Batch
    from fedpriv.data.encode import Example
    from fedpriv.models.vector import Vector
    from fedpriv.training.private_step import Unit
    from fedpriv.training.worker import Worker


@dataclass(frozen=True)
class Span:
    """The synthetic set as a model reads it, and how gradients are written in its gradients.

    Attributes:
        examples: one a record; None for one without a token to predict, whose gradient is 0.
    """

    settings: ProjectionSection
    examples: tuple[Example | None, ...]

    def values(self, trained: int) -> int:
        """How many values a site releases, of a model with so many trained parameters."""
        whole = {"gradient": trained, "residual": len(self.examples) + trained}
        return whole.get(self.settings.noise, len(self.examples))

    def batches(self, worker: Worker) -> Iterator[tuple[Losses, list[int]]]:
        """Losses of a microbatch of records at a time, and which they are.

        How many are computed together decides the last bits of a basis, which is public: so it is
        `Worker.fits`, and not what memory allowed for private records.
        """
        present = [i for i, example in enumerate(self.examples) if example is not None]
        found = [example for example in self.examples if example is not None]
        for length, members in buckets(found, worker.recipe.model.max_length).items():
            for chunk in chunks(members, worker.fits):
                batch = worker.batch([found[i] for i in chunk], length)
                yield partial(record_losses, batch=batch), [present[i] for i in chunk]

    def basis(self, worker: Worker) -> Basis:
        """The gradients of the set at the values that the worker's model has now."""
        return Basis(worker.gradients, self.batches(worker), len(self.examples))


class PeSgd:
    """A unit's vector is its mean gradient's coefficients in the gradients of a synthetic set.

    Formal guarantees:
        As of `ClippedSum`, over N values instead of P: whatever the set and the model are, and
        whoever chose them, a unit's vector is at most `clip_norm` long. With
        ``bound = "normalised"`` it has that length, and is 0 where the coefficients are. A unit's
        vector is the same bits whatever else is in the sample (`SteadyRows`): a small ridge
        amplifies rounding, and that would be a unit's influence on the vectors of others.

    Source:
        Zou et al., "PE-SGD", ICLR 2026; with ``noise = "gradient"`` the projection comes after
        the release, as in PDP-SGD (Zhou, Wu & Banerjee, ICLR 2021); with ``noise = "residual"``
        what the span leaves of a gradient is released beside it, as in GEP (Yu et al., ICLR 2021).
    """

    projects: ClassVar[bool] = True

    def __init__(self, span: Span) -> None:
        self.span = span
        self._basis: Basis | None = None
        self._projection: Projection | None = None

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Compute the set's gradients with these values; they stay as they are until the next call.

        So in local steps all moves of a round are in one span, and N values say them.

        Raises:
            FedprivError: they can't be computed.
        """
        settings = self.span.settings
        if settings.noise == "gradient":
            return DpLora().prepare(worker, parameters)
        worker.vector.write(parameters)
        self._basis = self.span.basis(worker)
        self._projection = Projection(self._basis.gram, settings.ridge)
        return self.span.values(worker.vector.size)

    def start(self, parameters: Vector) -> Vector:
        """No move in the span, (N,)."""
        return np.zeros(len(self.span.examples), dtype=np.float32)

    def at(self, parameters: Vector, moved: Vector) -> Vector:
        """The parameters, moved by these multiples of the gradients that were prepared."""
        assert self._basis is not None
        found: Vector = parameters + _vector(self._basis.combine(torch.from_numpy(moved)))
        return found

    def clipped_sum(
        self,
        worker: Worker,
        units: Sequence[Unit],
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Σ over units of their vectors, (N,); see `sum_of_units`."""
        if self.span.settings.noise == "gradient":
            return DpLora().clipped_sum(worker, units, parameters, clip_norm, numerics)
        basis, projection = self._basis, self._projection
        assert basis is not None and projection is not None  # prepare came first
        worker.vector.write(parameters)
        rows, vectors = self._products, partial(self._bounded, projection, clip_norm)
        if self.span.settings.noise == "residual":
            rows, vectors = self._gradients, partial(self._parts, basis, projection, clip_norm)
        size = self.span.values(worker.vector.size)
        total = sum_of_units(
            worker,
            units,
            clip_norm,
            numerics,
            size=size,
            rows=partial(rows, worker),
            vectors=vectors,
        )
        if self.span.settings.noise != "residual":
            return total
        first, rest = total.value[: basis.size], worker.gradients.natural(total.value[basis.size :])
        return ClippedSum(torch.cat([first, rest]), clip_norm, total.grid)

    def _products(self, worker: Worker, batch: Batch) -> Tensor:
        assert self._basis is not None
        return self._basis.products(partial(record_losses, batch=batch), len(batch)).double()

    def _gradients(self, worker: Worker, batch: Batch) -> Tensor:
        return gathered(worker.gradients, partial(record_losses, batch=batch), len(batch))

    def _bounded(self, projection: Projection, clip_norm: float, means: Tensor) -> Tensor:
        """The vector of each unit, (U, N), of its products."""
        if self.span.settings.noise == "coefficients":
            means = projection.coefficients(means)
        return normalised(means, clip_norm) if self._is_normalised else means

    def _parts(
        self, basis: Basis, projection: Projection, clip_norm: float, means: Tensor
    ) -> Tensor:
        """Of each unit's gradient the part in the span and the rest, each clipped: (U, N + P)."""
        inside = projection.root(basis.products_of(means))  # (U, N)
        rest = means.double() - basis.combinations(projection.root(inside))  # (U, P)
        share = self.span.settings.residual_share
        bounds = (clip_norm * (1 - share) ** 0.5, clip_norm * share**0.5)
        return torch.cat(
            [shortened(part, bound) for part, bound in zip((inside, rest), bounds, strict=True)], 1
        )

    @property
    def _is_normalised(self) -> bool:
        return self.span.settings.bound == "normalised"


def mean_gradient(span: Span, worker: Worker, parameters: Vector) -> Vector:
    """Of the records of a set at these values, (P,)."""
    worker.vector.write(parameters)
    weights = torch.full((len(span.examples),), 1 / len(span.examples))
    return _vector(weighted_gradient(worker.gradients, span.batches(worker), weights))


def lifted(span: Span, worker: Worker, parameters: Vector, mean: Vector) -> tuple[Vector, Vector]:
    """The gradient (P,) that a mean of releases stands for, at these values; its coefficients (N,).

    Privacy:
        Post-processing: the set is public, the values and the mean were released.
    """
    worker.vector.write(parameters)
    engine, found, settings = worker.gradients, torch.from_numpy(mean).double(), span.settings
    if settings.noise == "coefficients":
        return _vector(weighted_gradient(engine, span.batches(worker), found)), mean
    basis = span.basis(worker)
    projection = Projection(basis.gram, settings.ridge)
    rest = torch.zeros(())
    match settings.noise:
        case "products":
            z = projection.coefficients(found.to(basis.gram))
        case "gradient":
            z = projection.coefficients(basis.of(found).to(basis.gram))
        case "residual":
            z = projection.root(found[: basis.size].to(basis.gram))
            rest = found[basis.size :]
    gradient = basis.combine(z)
    return _vector(gradient + rest.to(gradient)), _vector(z)


def _vector(value: Tensor) -> Vector:
    found: Vector = value.float().cpu().numpy()
    return found
