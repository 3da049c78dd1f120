"""The parts of messages that divide the noise of a step among groups of trained parameters.

A job may say which groups there are (`GroupTerms`). Before each round a server then decides how
much of the plan's noise each group gets (`Decision`).

Privacy:
    A site trusts neither. It scales and clips by them in such a way that what one unit adds to a
    step is never longer than the plan's clip norm, whatever they say.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedpriv.privacy.usual import MAX_CLIP, MIN_CLIP
from fedpriv.section import Section

MAX_GROUPS = 10_000
MAX_BITS = 0.5  # of the squared norm, for the values on whether groups were within their clip norms
MIN_WEIGHT = 1e-12  # with less, noise is larger than any training's numbers can hold
UNIT_SUM = 1e-9  # how far from 1 the sum of all weights may be

Grouping = Literal["model", "layers", "adapters", "matrices"]
ClipNorm = Annotated[float, Field(ge=MIN_CLIP, le=MAX_CLIP)]
Weight = Annotated[float, Field(ge=MIN_WEIGHT, le=1)]


class GroupTerms(Section):
    """The groups of a job.

    Attributes:
        by: the kind of group: all that is trained, a layer of the model, an adapter (A and B of a
            layer together), or a single matrix.
        count: K, the number of groups.
        together: in a job of an earlier version, whether a unit's scaled vector was clipped as a
            whole, not group by group. Such a job can be read, but no site begins one.
        bits: f, the share of the squared norm that K further values take, each of which says
            whether the unit's group was within its clip norm.
        adaptive: always False. Jobs of an earlier version could choose their noise between the
            steps. The field is part of the digest of a proposal.
    """

    by: Grouping
    count: int = Field(ge=1, le=MAX_GROUPS)
    together: bool = False
    bits: float = Field(0.0, ge=0, le=MAX_BITS)
    adaptive: Literal[False] = False

    @property
    def extra(self) -> int:
        """Return the number of values in a release beside those of the parameters: K, or none."""
        return self.count if self.bits else 0

    @model_validator(mode="after")
    def _whole_model_is_one(self) -> Self:
        if self.by == "model" and self.count != 1:
            raise ValueError(f"count: with by = 'model' there is one group, not {self.count}")
        return self


class Decision(Section):
    """Say how the noise of one round is divided.

    Attributes:
        clip_norms: C_k, the clip norm of each group, (K,).
        weights: w_k of each group, (K,): its share of the squared norm that a unit may have after
            scaling. They sum to 1.
        share, rate: always None and 1. In an earlier version they could change the noise of a slot.
            They are part of the digest of a request.
    """

    clip_norms: tuple[ClipNorm, ...] = Field(min_length=1, max_length=MAX_GROUPS)
    weights: tuple[Weight, ...] = Field(min_length=1, max_length=MAX_GROUPS)
    share: None = None
    rate: float = Field(1.0, ge=1, le=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.weights) != len(self.clip_norms):
            raise ValueError(
                f"weights: expected one for each of {len(self.clip_norms)} clip norms, got"
                f" {len(self.weights)}"
            )
        total = math.fsum(self.weights)
        if abs(total - 1) > UNIT_SUM:
            raise ValueError(f"weights: expected a sum of 1, got {total!r}")
        return self
