"""Noise on the part of a gradient in the span of the set, and on the rest of it, both released.

Source:
    GEP: Yu et al., ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from fedpriv.methods.pe_sgd.server_half import Lifted
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.methods.pe_sgd.span import Span, as_vector
from fedpriv.methods.server_half import ServerContext
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.unit_sum import Unit, sum_of_units
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.controls.server import ControlServer

SHARE = 0.5  # of the bound, squared, that the rest has


class Residual(PeSgd):
    """A unit's vector is both parts of its mean gradient, each shortened to its share."""

    share = SHARE

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """As of PE-SGD; a release has N + P values."""
        return super().prepare(worker, parameters) + worker.vector.size

    def clipped_sum(
        self,
        worker: Worker,
        units: Sequence[Unit],
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Σ over units of their vectors, (N + P,)."""
        worker.vector.write(parameters)
        return sum_of_units(
            worker,
            units,
            clip_norm,
            numerics,
            size=self.public_records + worker.vector.size,
            values=worker.record_gradients,
            vectors=partial(self._parts, clip_norm),
        )

    def _parts(self, clip_norm: float, means: Tensor) -> Tensor:
        """Of each unit's gradient the part in the span and the rest: (U, N + P)."""
        basis, projection = self.span.basis, self.span.projection
        inside = projection.root(basis.products_of(means))  # (U, N)
        rest = means.double() - basis.combinations(projection.root(inside))  # (U, P)
        bounds = (clip_norm * (1 - self.share) ** 0.5, clip_norm * self.share**0.5)
        return torch.cat(
            [shortened(part, bound) for part, bound in zip((inside, rest), bounds, strict=True)], 1
        )


class ResidualServer(ControlServer):
    """Puts both parts together."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self._records = self.values
        self.values += context.trained

    def lifted(self, worker: Worker, parameters: Vector, mean: Vector) -> Lifted:
        """The gradient (P,) of both parts, and the coefficients (N,) of the first."""
        public_set = self.public_set
        span = Span(worker, public_set.examples, parameters, public_set.settings.ridge)
        found = torch.from_numpy(mean).double()
        inside, rest = found[: self._records], found[self._records :]
        z = span.projection.root(inside.to(span.basis.gram))
        gradient = span.basis.combine(z)
        return as_vector(gradient + rest.to(gradient)), as_vector(z)


def shortened(vectors: Tensor, norm: float) -> Tensor:
    """Every row (B, K) at length `norm` at most, in float64; one that is not finite as 0."""
    vectors = vectors.double()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    finite = torch.isfinite(lengths)
    scale = torch.where(finite, (norm / lengths).clamp_max(1.0), 0.0)
    return torch.where(finite, vectors, 0.0) * torch.where(lengths > 0, scale, 0.0)
