"""Define what a site has to know of the set in whose gradients it writes those of its records."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv.privacy.usual import MAX_PUBLIC_RECORDS
from fedpriv.section import Section

MAX_RIDGE = 1e6


class ProjectionSection(Section):
    """How a gradient is written in the gradients of the set: keys of ``[synthetic]``."""

    size: int = Field(
        200,
        ge=2,
        le=MAX_PUBLIC_RECORDS,
        description="Records of the set, and values that a site sends in a step.",
    )
    ridge: float = Field(
        1e-3,
        gt=0,
        le=MAX_RIDGE,
        description="Ridge of the regression on the set's gradients, relative to their mean"
        " square.",
    )
    bound: Literal["normalised", "clipped"] = Field(
        "normalised",
        description="Scale each unit's coefficients to length clip_norm (normalised), or only"
        " longer ones (clipped).",
    )
