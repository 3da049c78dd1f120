"""What a controller is told of a job and of its rounds, and what it answers.

A controller runs at the server. Before each round it says how the plan's noise is divided among
groups of trained parameters, and in an adaptive job how much noise there is. It sees public
numbers and released values only.

Privacy:
    No site trusts it. Whatever a decision says, what a unit adds to a step stays within the plan's
    clip norm (`fedpriv.config.groups`), and in an adaptive job a site refuses a slot that would
    overrun the budget. So a controller costs nothing, but for the `bits` that it asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedpriv.config.groups import Decision
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.mechanism.privatised import Privatised

Array = np.ndarray[Any, np.dtype[np.float64]]
State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Setting:
    """What is known of a job before its first round. All of it is public.

    Attributes:
        groups: their names; there are K.
        sizes: how many parameters each has.
        rounds: of the job.
        clip_norm: C of the plan.
        seed: of a controller that draws something.
        filter: of an adaptive job's plan; None in any other.

    Raises:
        ValueError: no groups, or a size that is none.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    rounds: int
    clip_norm: float
    seed: int = 0
    filter: RdpFilter | None = None

    def __post_init__(self) -> None:
        if not self.groups or len(self.groups) != len(self.sizes) or min(self.sizes) < 1:
            raise ValueError(f"expected a size for each group, got {self.groups}, {self.sizes}")

    @property
    def count(self) -> int:
        """K, the number of groups."""
        return len(self.groups)

    @property
    def shares(self) -> Array:
        """The share of all parameters that is in each group, (K,)."""
        sizes = np.asarray(self.sizes, np.float64)
        return np.asarray(sizes / sizes.sum())


@dataclass(frozen=True)
class Seen:
    """What a controller sees of a round that is over.

    Attributes:
        number: of the round, from 1.
        decision: that the round had.
        squared: of each group (K,), ‖g‖² − size · deviation² of the mean gradient g: without
            bias, and so negative at times.
        deviation: (K,), of the noise in a coordinate of the mean gradient; public.
        within: of each group (K,), the noisy share of units within its clip norm; None where the
            controller asked for no bits.
        moved: of each group (K,), the norm of the update.
        spent: the share of the filter's budget that is used, or of the rounds.
        loss: after the round, on public or synthetic records; None where the job has none.
    """

    number: int
    decision: Decision
    squared: Privatised[Array]
    deviation: tuple[float, ...]
    within: Privatised[Array] | None
    moved: Privatised[Array]
    spent: float
    loss: Privatised[float] | None


class Controller(Protocol):
    """Decides before each round.

    Attributes:
        bits: f, the share of a unit's squared norm that it needs for `Seen.within`; 0 for none.
        together: the scaled vector of a unit is to be clipped as a whole.
        lift: what the server multiplies the mean gradient by (and the deviation of its noise),
            after it has divided each group by its scale; 1 where updates have their usual size
            already.
    """

    bits: float
    together: bool
    lift: float

    def decide(self, number: int) -> Decision:
        """Decide for a round, from 1. Asked twice, it says the same: it changes nothing."""

    def see(self, seen: Seen) -> None:
        """See a round, once, after it.

        Raises:
            RawValueError: a value in it is raw; nothing was changed.
        """

    def state(self) -> Privatised[State]:
        """Return everything needed to continue later, as named arrays."""

    def restore(self, state: Privatised[State]) -> None:
        """Go on from what `state` returned, bit for bit.

        Raises:
            RawValueError: it is raw.
            RunError: it is of another controller, or of other groups.
        """
