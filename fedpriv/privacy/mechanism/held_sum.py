"""What a site holds of a sum that it makes with others, before it may leave."""

from __future__ import annotations

from typing import NoReturn

from fedpriv.errors import SlotError
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.mechanism.noise_share import Whole


class _Opaque:
    """Shows nothing, and can't be copied, pickled or sent."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} must not leave: it can't be pickled or copied.")


class HeldSum(_Opaque):
    """An exact sum over a sample, which waits in memory until it is known who adds up with whom.

    Made by `PlanExecution.hold` under a reservation; `PlanExecution.share` takes it, once.

    Attributes:
        plan: what was paid for.
        private: randomness that anyone could repeat is not good enough for it.

    Privacy:
        Private, and without any noise: must not leave, and must not be written to disk. If it is
        lost, its slot stays charged.
    """

    __slots__ = ("_values", "plan", "private")

    def __init__(self, plan: Plan, values: Whole, private: bool) -> None:
        self.plan, self.private = plan, private
        self._values = [values]

    def take(self) -> Whole:
        """The sum in fine steps, (P,), which is then forgotten here.

        Raises:
            SlotError: it was taken before. Noise around the same sum a second time would tell it.
        """
        try:
            return self._values.pop()
        except IndexError:
            raise SlotError(f"The sum of job {self.plan.job!r} has been shared before.") from None


class NoisyShare(_Opaque):
    """A site's part of a sum with its share of the noise, in coarse steps.

    Attributes:
        values: z, (P,) int64.
        members: |U|, of the set for which the noise was drawn.

    Privacy:
        Not privatised: the noise is a share of what was paid for, and the others add the rest.
        Must not leave as it is: only `fedpriv.secure_sum.masks` may take it. For |U| ≤ t + 1 the
        share is all of the noise, and it is masked all the same.
    """

    __slots__ = ("members", "values")

    def __init__(self, values: Whole, members: int) -> None:
        self.values, self.members = values, members
