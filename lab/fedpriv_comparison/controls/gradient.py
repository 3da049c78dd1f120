"""Noise on the whole gradient, which is projected after the release.

Source:
    PDP-SGD: Zhou, Wu & Banerjee, ICLR 2021.
"""

from __future__ import annotations

import torch

from fedpriv.methods.dp_lora.site_half import DpLora
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.server_half import Lifted
from fedpriv.methods.pe_sgd.span import Span, as_vector
from fedpriv.methods.server_half import ServerContext
from fedpriv.models.vector import Vector
from fedpriv.private_training.method import Records
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.controls.server import ControlServer


class Gradient(DpLora):
    """DP-LoRA, at a site that is sent a set and has no use for it."""

    def __init__(self, settings: ProjectionSection, records: Records = ()) -> None:
        super().__init__()
        self.public_records = settings.size


class GradientServer(ControlServer):
    """Projects gradients."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self.values = context.trained

    def lifted(self, worker: Worker, parameters: Vector, mean: Vector) -> Lifted:
        """The part of a gradient (P,) in the span of the set, and its coefficients."""
        public_set = self.public_set
        span = Span(worker, public_set.examples, parameters, public_set.settings.ridge)
        products = span.basis.products_of(torch.from_numpy(mean).double()[None])[0]
        z = span.projection.coefficients(products.to(span.basis.gram))
        return span.combine(z), as_vector(z)
