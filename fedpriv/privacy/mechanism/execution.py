"""The one gate through which anything computed from private records may leave.

A plan is executed by one object: it samples, has the sum made, checks it, and adds the noise, all
as the plan says. A reservation pays for a step of this very plan, so what runs is what is accounted
for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.ledger.ledger import Reservation
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism.clip import ClippedSum, zeros
from fedpriv.privacy.mechanism.csprng import RandomSource, require_secret
from fedpriv.privacy.mechanism.grid import deviation, grid_of, step_of
from fedpriv.privacy.mechanism.noise import rounded_gaussian
from fedpriv.privacy.mechanism.noise_share import add_share, plan_shares, shared_grid
from fedpriv.privacy.mechanism.noisy_share import NoisyShare
from fedpriv.privacy.mechanism.privatised import Privatised, released
from fedpriv.privacy.mechanism.sampling import poisson_sample

Values = np.ndarray[Any, np.dtype[np.float32]]
SumOver = Callable[[Sequence[int]], ClippedSum]

_MOST = 2.0**62  # most steps in a sum, so that int64 has room for noise
_IN_CACHE = 2**15  # values at a time


@dataclass(frozen=True)
class Work:
    """Hold what a step computes of the units that are sampled.

    Attributes:
        population: how many units there are.
        sum_over: gives the sum over the units at these places, at most `clip_norm` for each, on the
            plan's grid in strict numerics.
        went_on_after: called, within the site, with an error that leaves noise alone.
    """

    population: int
    sum_over: SumOver
    went_on_after: Callable[[Exception], None]


class PlanExecution:
    """Run the steps of a plan over one population, each under a reservation that paid for it.

    A sum of less sensitivity than C gets no less noise, so that nobody can tell. A sum is a whole
    number of steps γ, which depend on C and P alone: in strict numerics it is made so, on the
    plan's grid, and else the float64 sum is rounded to `sum_step`. The noise is a real Gaussian
    rounded to the same steps. Rounding the result to float32 is post-processing.

    Args:
        size: P, the number of values in a release.

    Raises:
        AccountingError: the noise for so many values is more than float64 can hold, or strict
            numerics have no grid for them; or it can't be divided into the plan's shares
            (`SharedGrid`).

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
        A shared plan is run by `share` in place of `step`, and nothing leaves here: what the table
        says is what the sum of a set holds of this site.

    Privacy:
        One step is one Poisson-subsampled Gaussian mechanism (Dwork & Roth 2014, §A.1; Mironov et
        al. 2019) at the (sample_rate, σ) of the plan, up to `log_sampler_delta`, of
        sensitivity C for adding or removing one unit, the rounding to steps included: with an
        integer sum S and real noise Y, S + round(Y) = round(S + Y) is post-processing of S + Y.
        That two default sums are at most C apart rests on how gradients are computed; see the
        numerics mode of a report. A step is paid by its reservation; neither the size of the sample
        nor an error leaves.
    """

    def __init__(self, plan: Plan, size: int) -> None:
        self.plan, self.size = plan, size
        self.grid = grid_of(plan.numerics, plan.clip_norm, size)
        self._step = step_of(plan.numerics, plan.clip_norm, size)
        self._most = _MOST * (1 if self.grid else self._step)
        self._deviation = deviation(plan.noise_multiplier, plan.clip_norm, self._step)
        self._shared = shared_grid(plan, size) if plan.is_shared else None

    def step(
        self, reservation: Reservation, work: Work, csprng: RandomSource
    ) -> Privatised[Values]:
        """Run one step: sample, sum, add noise.

        Args:
            csprng: the random source of sample and noise, secret.

        Raises:
            AccountingError: the reservation paid for another plan, or for secret randomness only;
                or the noise of the plan is shared.
            SlotError: the reservation has bought a release before.
        """
        self._use(reservation, csprng)
        return self._noised(self._sum(work, csprng), csprng)

    def share(
        self, reservation: Reservation, work: Work, csprng: RandomSource, members: int
    ) -> NoisyShare:
        """Run one step of a shared plan: sample, sum, add this site's share of the noise.

        Args:
            members: |U|, the size of the set that the slot is for; this site is in it.

        Raises:
            AccountingError, SlotError: see `step`; or the noise of the plan is not shared, or not
                among so many members.

        Privacy:
            Not privatised by itself: see `NoisyShare`. Sample and noise are drawn here, after the
            set is known.
        """
        if self._shared is None:
            raise AccountingError("Expected a plan whose noise is shared.")
        shares = plan_shares(self.plan, members)
        self._use(reservation, csprng, shared=True)
        whole = self._whole(self._sum(work, csprng)).astype(np.int64)
        return NoisyShare(add_share(whole, self._shared, shares, csprng))

    def _use(self, reservation: Reservation, csprng: RandomSource, shared: bool = False) -> None:
        """Use what was paid for, once."""
        require_secret(csprng, reservation.private)
        if self.plan.is_shared != shared:
            raise AccountingError("Expected a sum to be shared if the plan says so, and only then.")
        if reservation.use() != self.plan:
            raise AccountingError("The reservation paid for another plan.")

    def _sum(self, work: Work, csprng: RandomSource) -> ClippedSum:
        sample = poisson_sample(work.population, self.plan.sample_rate, csprng)
        try:
            return self._checked(work.sum_over(sample.tolist()))
        except Exception as error:
            # No answer at all would tell something of the sample; noise around 0 does not.
            work.went_on_after(error)
            return ClippedSum(zeros(self.size, self.grid), 0.0, self.grid)

    def _checked(self, total: ClippedSum) -> ClippedSum:
        if not 0 <= total.sensitivity <= self.plan.clip_norm:
            raise AccountingError(
                f"Expected sensitivity={total.sensitivity} ≤ clip_norm={self.plan.clip_norm} of"
                " the plan."
            )
        if total.grid != self.grid:
            raise AccountingError(f"Expected a sum on {self.grid} of the plan, got {total.grid}.")
        if total.value.shape != (self.size,):
            raise AccountingError(f"Expected a sum of {self.size} values.")
        if not bool((total.value.abs() <= self._most).all()):  # NaN is neither
            raise AccountingError("Expected a finite sum, below 2^62 steps.")
        return total

    def _whole(self, total: ClippedSum) -> np.ndarray[Any, Any]:
        exact = total.value.detach().cpu().numpy()
        return np.rint(exact / self._step) if total.grid is None else exact

    def _noised(self, total: ClippedSum, csprng: RandomSource) -> Privatised[Values]:
        noise = rounded_gaussian(self.size, self._deviation, csprng)
        whole, values = self._whole(total), np.empty(self.size, np.float32)
        for start in range(0, self.size, _IN_CACHE):
            part = slice(start, start + _IN_CACHE)
            values[part] = (whole[part] + noise[part]) * self._step
        return released(values)
