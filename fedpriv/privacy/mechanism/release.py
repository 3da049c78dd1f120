"""The one gate through which anything computed from private records may leave.

What it lets out is made from a clipped sum that knows its sensitivity and a reservation that a
ledger has already paid for; the noise is the one that was paid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.mechanism.grid import deviation, grid_of, sum_step
from fedpriv.privacy.mechanism.noise import rounded_gaussian
from fedpriv.privacy.mechanism.privatised import Privatised, released

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.ledger import Reservation
    from fedpriv.privacy.ledger.plan import Plan
    from fedpriv.privacy.mechanism.clip import ClippedSum
    from fedpriv.privacy.mechanism.csprng import RandomSource


def release_gaussian(
    total: ClippedSum, reservation: Reservation, csprng: RandomSource
) -> Privatised[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Add Gaussian noise of standard deviation σ·C to every coordinate.

    σ and C are noise multiplier and clip norm of the reserved plan, so what runs is what was paid
    for; a sum of less sensitivity than C gets no less noise, so that nobody can tell. The sum is
    a whole number of steps γ: in strict numerics it is made so, on the plan's grid, and else the
    float64 sum is rounded to `sum_step`. The noise is a real Gaussian rounded to the same steps.
    Rounding the result to float32 is post-processing.

    Privacy:
        What leaves: the noisy sum, (P,) float32. Its sensitivity is C at most, for adding or
        removing one unit, the rounding to steps included. Paid by the reservation: one
        Poisson-subsampled Gaussian mechanism (Dwork & Roth 2014, §A.1; Mironov et al. 2019) at
        (sample_rate, σ), up to `sampler_delta`: with an integer sum S and real noise Y,
        S + round(Y) = round(S + Y) is post-processing of S + Y. That two default sums are at most
        C apart rests on how gradients are computed; see the numerics mode of a report.

    Raises:
        AccountingError: the sum is not what `check_sum` expects, the noise is more than can be
            drawn (see `check_release`), or the randomness is not what a private ledger pays for.
        SlotError: the reservation has bought a release before.
    """
    if reservation.private and not csprng.is_secure:
        raise AccountingError("A private ledger pays for secret randomness only.")
    plan = reservation.use()
    check_sum(total, plan)
    exact = total.value.detach().cpu().numpy()
    step = _step(plan, exact.size)
    whole = np.rint(exact / step) if total.grid is None else exact
    spread = deviation(plan.noise_multiplier, plan.clip_norm, step)
    noise = rounded_gaussian(exact.size, spread, csprng)
    return released(((whole + noise) * step).astype(np.float32))


def check_release(plan: Plan, size: int) -> None:
    """Check, before anything is paid, that the noise for sums of `size` values can be drawn.

    Raises:
        AccountingError: it is too much for float64; or strict numerics have no grid for so many.
    """
    deviation(plan.noise_multiplier, plan.clip_norm, _step(plan, size))


def _step(plan: Plan, size: int) -> float:
    """γ, what all values of a release are whole multiples of before they are made float32."""
    grid = grid_of(plan.numerics, plan.clip_norm, size)
    return sum_step(plan.clip_norm, size) if grid is None else grid.step


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
