"""Noise on the inner products with the set's gradients; the server solves for coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedpriv.methods.pe_sgd.server_half import Lifted
from fedpriv.methods.pe_sgd.site_half import PeSgd
from fedpriv.methods.pe_sgd.span import Span, as_vector
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.unit_sum import Unit, sum_of_units
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.controls.server import ControlServer


class Products(PeSgd):
    """A unit's vector is its mean gradient's inner products with those of the set, bounded."""

    def clipped_sum(
        self,
        worker: Worker,
        units: Sequence[Unit],
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Σ over units of their vectors, (N,)."""

        def vectors(products: Tensor) -> Tensor:
            return self.bounded(products, clip_norm)

        worker.vector.write(parameters)
        size, values = self.public_records, self.span.products
        return sum_of_units(
            worker, units, clip_norm, numerics, size=size, values=values, vectors=vectors
        )


class ProductsServer(ControlServer):
    """Lifts products."""

    def lifted(self, worker: Worker, parameters: Vector, mean: Vector) -> Lifted:
        """The gradient (P,) that these products (N,) stand for, and its coefficients."""
        public_set = self.public_set
        span = Span(worker, public_set.examples, parameters, public_set.settings.ridge)
        z = span.projection.coefficients(torch.from_numpy(mean).to(span.basis.gram))
        return span.combine(z), as_vector(z)
