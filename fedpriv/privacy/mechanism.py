"""The one gate through which anything computed from private records may leave.

A `Privatised` value can only be made here, from a clipped sum that knows its sensitivity and
a reservation that a ledger has already paid for; the noise is the one that was paid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from fedpriv.errors import AccountingError
from fedpriv.privacy.noise import gaussian

if TYPE_CHECKING:
    from fedpriv.gradients.clip import ClippedSum
    from fedpriv.privacy.entropy import Entropy
    from fedpriv.privacy.ledger import Reservation

T = TypeVar("T")
_GATE = object()
LOCAL = "local: the site adds its own noise"


@dataclass(frozen=True)
class Privatised(Generic[T]):
    """A value that is differentially private on its own, whoever reads it.

    Attributes:
        value: the released value.
        noise_multiplier: standard deviation of its noise over its sensitivity.
        sample_rate: chance of each unit to be in it.
        trust_model: who has to be trusted for the claim.
    """

    value: T
    noise_multiplier: float
    sample_rate: float
    trust_model: str = LOCAL
    _gate: object = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self._gate is not _GATE:
            raise AccountingError("A Privatised value is made by a mechanism, not by hand.")


def release_gaussian(
    total: ClippedSum, reservation: Reservation, entropy: Entropy
) -> Privatised[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Add Gaussian noise of standard deviation σ·sensitivity to every coordinate.

    σ is the noise multiplier of the reserved plan, so what runs is what was paid for. The sum
    and the noise are float64; rounding the result to float32 is post-processing.

    Privacy:
        What leaves: the noisy sum, (P,) float32. Its sensitivity is `total.sensitivity`, for
        adding or removing one unit. Paid by the reservation: one Poisson-subsampled Gaussian
        mechanism (Dwork & Roth 2014, §A.1; Mironov et al. 2019) at (sample_rate, σ).

    Raises:
        AccountingError: the sum was not clipped to the norm that was committed.
    """
    plan = reservation.plan
    if total.sensitivity > plan.clip_norm:
        raise AccountingError(
            f"Expected sensitivity={total.sensitivity} ≤ clip_norm={plan.clip_norm} of the plan."
        )
    exact = total.value.detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(exact).all():
        raise AccountingError("Expected a finite sum: a NaN would tell that a unit was sampled.")
    noise = gaussian(exact.size, entropy) * (plan.noise_multiplier * plan.clip_norm)
    return Privatised(
        (exact + noise).astype(np.float32),
        noise_multiplier=plan.noise_multiplier,
        sample_rate=plan.sample_rate,
        _gate=_GATE,
    )
