"""PE-SGD at a site: the sum of the units' coefficients in the gradients of a synthetic set."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from fedpriv.data.store import Units
from fedpriv.errors import ProtocolError
from fedpriv.methods.pe_sgd.config import ProjectionSection
from fedpriv.methods.pe_sgd.projection import normalised
from fedpriv.methods.pe_sgd.span import Span, as_vector, span_of
from fedpriv.models.vector import Vector
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.privacy.usual import Numerics
from fedpriv.private_training.method import Records
from fedpriv.private_training.unit_sum import sum_of_units
from fedpriv.private_training.worker import Worker
from fedpriv.protocol import Proposal


class PeSgd:
    """A unit's vector is its mean gradient's coefficients in the gradients of a synthetic set.

    See `SiteMethod`.

    Formal guarantees:
        Those of `ClippedSum`, over N values instead of P: whatever the set and the model are, and
        whoever chose them, a unit's vector is at most `clip_norm` long. With
        ``bound = "normalised"`` it has that length, and is 0 where the coefficients are. A unit's
        vector is the same bits whatever else is in the sample (`BatchInvariant`): a small ridge
        amplifies rounding, and that would be a unit's influence on the vectors of others.

    Source:
        Zou et al., "PE-SGD", ICLR 2026.
    """

    def __init__(self, settings: ProjectionSection, records: Records = ()) -> None:
        self.settings = settings
        self.public_records = settings.size
        self._records = records
        self._span: Span | None = None

    def held_bytes(self, trained: int) -> int:
        """Return the bytes of the set's gradients.

        Raises:
            ProtocolError: the set is larger than the space it stands for.
        """
        size = self.settings.size
        if size > trained:
            problem = f"{size} is more than the {trained} parameters that are trained"
            raise ProtocolError(f"synthetic.size: {problem}. Lower it.")
        return size * trained * 4

    def prepare(self, worker: Worker, parameters: Vector) -> int:
        """Compute the set's gradients with these values; they stay as they are until the next call.

        So in local steps all moves of a round are in one span, and N values describe them.

        Raises:
            FedprivError: they can't be computed.
        """
        self._span = None  # makes room
        self._span = span_of(worker, self._records, parameters, self.settings.ridge)
        return len(self._records)

    @property
    def span(self) -> Span:
        """The span that was prepared."""
        assert self._span is not None  # prepare comes first
        return self._span

    def start(self, parameters: Vector) -> Vector:
        """Return no move in the span, (N,)."""
        return np.zeros(self.public_records, dtype=np.float32)

    def at(self, parameters: Vector, moved: Vector) -> Vector:
        """Return the parameters, moved by these multiples of the gradients that were prepared."""
        found: Vector = parameters + as_vector(self.span.combine(torch.from_numpy(moved)))
        return found

    def clipped_sum(
        self,
        worker: Worker,
        units: Units,
        parameters: Vector,
        clip_norm: float,
        numerics: Numerics = "default",
    ) -> ClippedSum:
        """Sum the units' vectors, (N,); see `sum_of_units`."""
        span = self.span

        def vectors(products: Tensor) -> Tensor:
            found = span.projection.coefficients(products)
            return normalised(found, clip_norm) if self.settings.bound == "normalised" else found

        worker.vector.write(parameters)
        size, values = span.size, span.products
        return sum_of_units(
            worker, units, clip_norm, numerics, size=size, values=values, vectors=vectors
        )


def projection_of(proposal: Proposal) -> ProjectionSection:
    """Read what a proposal says of the set.

    Raises:
        ProtocolError: it says something else, or asks for local steps that would leave the span.
    """
    try:
        settings = ProjectionSection.model_validate(proposal.settings)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ProtocolError(f"settings.{key:.100}: {first['msg']:.200}.") from None
    if settings.size != proposal.public_records:
        raise ProtocolError(
            f"settings.size: {settings.size} records of the {proposal.public_records} that would"
            " be sent."
        )
    local = proposal.local
    if local is not None and local.optimizer.weight_decay:
        raise ProtocolError("local.optimizer.weight_decay: coefficients are no weights.")
    if local is not None and local.denoise.where != "off":
        raise ProtocolError("local.denoise: coefficients are no matrices.")
    return settings
