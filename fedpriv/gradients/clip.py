"""Bound what one unit can change: clip its vector, add it up, remember the bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# float32 rounding of a norm passed the bound by 1.1e-6 in 10⁶ rows; this is ten times that.
MARGIN = 1e-5


@dataclass(frozen=True)
class ClippedSum:
    """A sum of clipped unit vectors that knows its own sensitivity.

    Attributes:
        value: (P,) float64, in the order of `TrainableVector`.
        sensitivity: the most that adding or removing one unit can change `value`, L2.

    Formal guarantees:
        ====================  ==============================================================
        unit                  contributes
        ====================  ==============================================================
        ‖v‖ ≤ C(1−1e-5)       v
        ‖v‖ > C(1−1e-5)       v scaled to that norm
        NaN or ∞ in v or ‖v‖  0
        no records            0
        ====================  ==============================================================
        An empty sum is 0 and has the same sensitivity.

    Privacy:
        Private. Only `fedpriv.privacy.mechanism` turns it into something that may leave.
    """

    value: Tensor
    sensitivity: float


def clip_and_sum(rows: Tensor, clip_norm: float) -> Tensor:
    """Σᵢ rowᵢ · min(1, C(1−1e-5)/‖rowᵢ‖) over `rows` (B, P), as (P,) in the rows' own type.

    Rows are clipped in the arithmetic in which they are added. `rows` is changed in place
    where a row is not finite: 0·NaN is NaN, so a factor of 0 is not enough.

    Raises:
        ValueError: Expected clip_norm > 0.
    """
    if not clip_norm > 0:
        raise ValueError(f"Expected clip_norm={clip_norm} > 0.")
    norms = torch.linalg.vector_norm(rows, dim=1)  # (B,)
    finite = torch.isfinite(norms)
    rows.masked_fill_(~finite.unsqueeze(1), 0.0)
    bound = clip_norm * (1 - MARGIN)
    scale = torch.where(finite, (bound / norms.clamp_min(bound)), torch.zeros_like(norms))
    return scale @ rows
