"""A site's part of a sum that it makes with others, before it may leave."""

from __future__ import annotations

from fedpriv.privacy.mechanism.noise_share import Whole
from fedpriv.secret import Secret


class NoisyShare(Secret):
    """A site's sum with its share of the noise, in coarse steps.

    Made by `PlanExecution.share`. Shows nothing, and can't be copied, pickled or sent.

    Attributes:
        values: z, (P,) int64.

    Privacy:
        Not privatised: the noise is a share of what was paid for, and the others add the rest.
        Must not leave as it is: only `fedpriv.secure_sum.masks` may take it. For |U| ≤ t + 1 the
        share has all of the noise, and it is masked all the same.
    """

    __slots__ = ("values",)

    def __init__(self, values: Whole) -> None:
        self.values = values
