"""Bound what one unit can change: clip its vector, add it up, remember the bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedpriv.config.job import MAX_CLIP, MIN_CLIP

# Norms, factors and sums are float64: a float32 norm of 10⁷ equal values is 1.7% too small, one
# of values below 1e-22 is 0. The margin covers what float64 rounding is left.
MARGIN = 1e-5
COLUMNS = 2**20  # of the rows, made float64 at a time


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
    """Σᵢ rowᵢ · min(1, C(1−1e-5)/‖rowᵢ‖) over `rows` (B, P), as (P,) float64.

    Norms, factors and sums are float64 whatever the rows are. `rows` is changed in place where
    a row is not finite: 0·NaN is NaN, so a factor of 0 is not enough.

    Raises:
        ValueError: Expected MIN_CLIP ≤ clip_norm ≤ MAX_CLIP.
    """
    if not MIN_CLIP <= clip_norm <= MAX_CLIP:
        raise ValueError(f"Expected {MIN_CLIP:g} <= clip_norm={clip_norm} <= {MAX_CLIP:g}.")
    parts = rows.split(COLUMNS, dim=1)  # type: ignore[no-untyped-call]
    squares = [part.double().square().sum(1) for part in parts]
    norms = torch.stack(squares).sum(0).sqrt()  # (B,)
    finite = torch.isfinite(norms)
    rows.masked_fill_(~finite.unsqueeze(1), 0.0)
    bound = clip_norm * (1 - MARGIN)
    scale = torch.where(finite, bound / norms.clamp_min(bound), torch.zeros_like(norms))
    return torch.cat([scale @ part.double() for part in parts])
