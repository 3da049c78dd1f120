"""The one gate through which anything computed from private records may leave.

What it lets out is made from a clipped sum that knows its sensitivity and a reservation that a
ledger has already paid for; the noise is the one that was paid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.grid import grid_of
from fedpriv.privacy.noise import gaussian, rounded_gaussian
from fedpriv.privacy.privatised import Privatised, released

if TYPE_CHECKING:
    from fedpriv.gradients.clip import ClippedSum
    from fedpriv.privacy.entropy import Entropy
    from fedpriv.privacy.ledger import Reservation


def release_gaussian(
    total: ClippedSum, reservation: Reservation, entropy: Entropy
) -> Privatised[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Add Gaussian noise of standard deviation σ·sensitivity to every coordinate.

    σ is the noise multiplier of the reserved plan, so what runs is what was paid for. The sum
    and the noise are float64, or integers on the plan's grid where its numerics are strict;
    rounding the result to float32 is post-processing.

    Privacy:
        What leaves: the noisy sum, (P,) float32. Its sensitivity is `total.sensitivity`, for
        adding or removing one unit. Paid by the reservation: one Poisson-subsampled Gaussian
        mechanism (Dwork & Roth 2014, §A.1; Mironov et al. 2019) at (sample_rate, σ). In strict
        numerics exactly so, up to `sampler_delta`: with an integer sum S and real noise Y,
        S + round(Y) = round(S + Y) is post-processing of S + Y.

    Raises:
        AccountingError: the sum was not clipped to the norm that was committed, or is not on
            the plan's grid.
    """
    plan = reservation.plan
    if total.sensitivity > plan.clip_norm:
        raise AccountingError(
            f"Expected sensitivity={total.sensitivity} ≤ clip_norm={plan.clip_norm} of the plan."
        )
    grid = grid_of(plan.numerics, plan.clip_norm, total.value.numel())
    if total.grid != grid:
        raise AccountingError(f"Expected a sum on {grid} of the plan, got {total.grid}.")
    exact = total.value.detach().cpu().numpy()
    if grid is not None:
        steps = rounded_gaussian(exact.size, grid.deviation(plan.noise_multiplier), entropy)
        return released(((exact + steps) * grid.step).astype(np.float32))
    if not np.isfinite(exact).all():
        raise AccountingError("Expected a finite sum: a NaN would tell that a unit was sampled.")
    noise = gaussian(exact.size, entropy) * (plan.noise_multiplier * plan.clip_norm)
    return released((exact + noise).astype(np.float32))
