"""The one gate through which anything computed from private records may leave.

A plan is executed by one object: it samples, has the sum made, checks it, and adds the noise, all
as the plan says. What pays is the event of the same plan, so that what runs is what is accounted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.accounting.accountant import Event
from fedpriv.privacy.ledger.ledger import Reservation
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.csprng import RandomSource
from fedpriv.privacy.mechanism.grid import deviation, grid_of, sum_step
from fedpriv.privacy.mechanism.noise import rounded_gaussian
from fedpriv.privacy.mechanism.privatised import Privatised, released
from fedpriv.privacy.mechanism.sampling import poisson_sample

Values = np.ndarray[Any, np.dtype[np.float32]]


class PlanExecution:
    """Runs the steps of a plan over one population, each under a reservation that paid for it.

    σ, C, the rate and the numerics are those of the plan. A sum of less sensitivity than C gets no
    less noise, so that nobody can tell. A sum is a whole number of steps γ: in strict numerics it
    is made so, on the plan's grid, and else the float64 sum is rounded to `sum_step`. The noise is
    a real Gaussian rounded to the same steps. Rounding the result to float32 is post-processing.

    Args:
        size: P, how many values a release has.

    Raises:
        AccountingError: the noise for so many is more than float64 can hold, or strict numerics
            have no grid for them.

    Formal guarantees:
        =======================  ============================================================
        what happens             what leaves
        =======================  ============================================================
        a sum was made           sum + noise, (P,) float32
        nobody was sampled       noise around 0
        no sum could be made     noise around 0, of the same sample: there is no other try
        the sum is not the       noise around 0
        plan's, or not finite
        =======================  ============================================================

    Privacy:
        One step is one Poisson-subsampled Gaussian mechanism (Dwork & Roth 2014, §A.1; Mironov et
        al. 2019) at (sample_rate, σ), up to `sampler_delta`, of sensitivity C for adding or
        removing one unit, the rounding to steps included: with an integer sum S and real noise Y,
        S + round(Y) = round(S + Y) is post-processing of S + Y. That two default sums are at most
        C apart rests on how gradients are computed; see the numerics mode of a report. A step is
        paid by its reservation; neither the size of the sample nor an error leaves.
    """

    def __init__(self, plan: Plan, size: int) -> None:
        self.plan, self.size = plan, size
        self.grid = grid_of(plan.numerics, plan.clip_norm, size)
        self._step = sum_step(plan.clip_norm, size) if self.grid is None else self.grid.step
        self._deviation = deviation(plan.noise_multiplier, plan.clip_norm, self._step)

    @property
    def event(self) -> Event:
        """What one step costs."""
        return self.plan.event(1)

    def step(
        self,
        reservation: Reservation,
        population: int,
        sum_over: Callable[[Sequence[int]], ClippedSum],
        csprng: RandomSource,
        went_on_after: Callable[[Exception], None],
    ) -> Privatised[Values]:
        """One step: sample, sum, noise.

        Args:
            population: how many units there are.
            sum_over: the sum over the units at these places, at most `clip_norm` for each, on the
                plan's grid in strict numerics.
            csprng: of the sample and the noise, secret.
            went_on_after: told, within the site, of an error that leaves noise alone.

        Raises:
            AccountingError: the reservation paid for another plan, or for secret randomness only.
            SlotError: the reservation has bought a release before.
        """
        self._use(reservation, csprng)
        sample = poisson_sample(population, self.plan.sample_rate, csprng)
        try:
            total = sum_over(sample.tolist())
            self._check(total)
        except Exception as error:
            # No answer at all would tell something of the sample; noise around 0 does not.
            went_on_after(error)
            total = ClippedSum(zeros(self.size, self.grid), 0.0, self.grid)
        return self._noised(total, csprng)

    def release(
        self, total: ClippedSum, reservation: Reservation, csprng: RandomSource
    ) -> Privatised[Values]:
        """A sum over a sample that was drawn by whoever calls, with the plan's noise.

        Raises:
            AccountingError: as of `step`; or the sum was not clipped to the plan's norm, is not on
                its grid, or is not finite: a NaN would tell that a unit was sampled.
            SlotError: the reservation has bought a release before.
        """
        self._use(reservation, csprng)
        self._check(total)
        return self._noised(total, csprng)

    def _use(self, reservation: Reservation, csprng: RandomSource) -> None:
        if reservation.private and not csprng.is_secure:
            raise AccountingError("A private ledger pays for secret randomness only.")
        if reservation.use() != self.plan:
            raise AccountingError("The reservation paid for another plan.")

    def _check(self, total: ClippedSum) -> None:
        if not 0 <= total.sensitivity <= self.plan.clip_norm:
            raise AccountingError(
                f"Expected sensitivity={total.sensitivity} ≤ clip_norm={self.plan.clip_norm} of"
                " the plan."
            )
        if total.grid != self.grid:
            raise AccountingError(f"Expected a sum on {self.grid} of the plan, got {total.grid}.")
        if total.value.shape != (self.size,):
            raise AccountingError(f"Expected a sum of {self.size} values.")
        if not bool(total.value.isfinite().all()):
            raise AccountingError("Expected a finite sum.")

    def _noised(self, total: ClippedSum, csprng: RandomSource) -> Privatised[Values]:
        exact = total.value.detach().cpu().numpy()
        whole = np.rint(exact / self._step) if total.grid is None else exact
        noise = rounded_gaussian(self.size, self._deviation, csprng)
        return released(((whole + noise) * self._step).astype(np.float32))
