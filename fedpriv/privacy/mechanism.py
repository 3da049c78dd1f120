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
    from fedpriv.privacy.plan import Plan


def release_gaussian(
    total: ClippedSum, reservation: Reservation, entropy: Entropy
) -> Privatised[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Add Gaussian noise of standard deviation σ·C to every coordinate.

    σ and C are noise multiplier and clip norm of the reserved plan, so what runs is what was paid
    for; a sum of less sensitivity than C gets no less noise, so that nobody can tell. The sum
    and the noise are float64, or integers on the plan's grid where its numerics are strict;
    rounding the result to float32 is post-processing.

    Privacy:
        What leaves: the noisy sum, (P,) float32. Its sensitivity is C at most, for adding or
        removing one unit. Paid by the reservation: one Poisson-subsampled Gaussian
        mechanism (Dwork & Roth 2014, §A.1; Mironov et al. 2019) at (sample_rate, σ). In strict
        numerics exactly so, up to `sampler_delta`: with an integer sum S and real noise Y,
        S + round(Y) = round(S + Y) is post-processing of S + Y.

    Raises:
        AccountingError: the sum is not what `check_sum` expects, or the randomness is not what
            a private ledger pays for.
        SlotError: the reservation has bought a release before.
    """
    if reservation.private and not entropy.is_secure:
        raise AccountingError("A private ledger pays for secret randomness only.")
    plan = reservation.use()
    check_sum(total, plan)
    exact = total.value.detach().cpu().numpy()
    if (grid := total.grid) is not None:
        steps = rounded_gaussian(exact.size, grid.deviation(plan.noise_multiplier), entropy)
        return released(((exact + steps) * grid.step).astype(np.float32))
    noise = gaussian(exact.size, entropy) * (plan.noise_multiplier * plan.clip_norm)
    return released((exact + noise).astype(np.float32))


def check_sum(total: ClippedSum, plan: Plan) -> None:
    """Check that a sum is what a plan pays for.

    Raises:
        AccountingError: it was not clipped to the plan's norm, is not on its grid, or is not
            finite: a NaN would tell that a unit was sampled.
    """
    if not 0 <= total.sensitivity <= plan.clip_norm:
        raise AccountingError(
            f"Expected sensitivity={total.sensitivity} ≤ clip_norm={plan.clip_norm} of the plan."
        )
    grid = grid_of(plan.numerics, plan.clip_norm, total.value.numel())
    if total.grid != grid:
        raise AccountingError(f"Expected a sum on {grid} of the plan, got {total.grid}.")
    if not bool(total.value.isfinite().all()):
        raise AccountingError("Expected a finite sum.")
