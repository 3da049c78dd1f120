"""What a site has to know of a set in whose gradients it writes those of its records."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv.config.section import Section
from fedpriv.errors import ProtocolError
from fedpriv.privacy.usual import MAX_PUBLIC_RECORDS

MAX_RIDGE = 1e6


class ProjectionSection(Section):
    """How a gradient is written in the gradients of the set: keys of ``[synthetic]``."""

    size: int = Field(200, ge=2, le=MAX_PUBLIC_RECORDS, description="records of the set")
    ridge: float = Field(
        1e-3, gt=0, le=MAX_RIDGE, description="relative to the mean square of their gradients"
    )
    bound: Literal["normalised", "clipped"] = Field(
        "normalised",
        description="the coefficients of every unit at clip_norm, or at most at it",
    )

    def check_fits(self, trained: int) -> None:
        """Refuse a set that is larger than the space it stands for.

        Raises:
            ProtocolError: it is.
        """
        if self.size > trained:
            raise ProtocolError(
                f"synthetic.size: {self.size} is more than the {trained} parameters that are"
                " trained. Lower it."
            )
