"""What a controller is told of a job and of its rounds.

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
from typing import Any

import numpy as np

from fedpriv.config.groups import Decision
from fedpriv.privacy.accounting.filter import RdpFilter
from fedpriv.privacy.mechanism.privatised import Privatised

Array = np.ndarray[Any, np.dtype[np.float64]]
State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Setting:
    """The facts of a job that are known before its first round. All are public.

    Attributes:
        groups: the names of the K groups.
        sizes: the number of parameters of each group.
        rounds: the number of the job's rounds.
        clip_norm: C, the plan's clip norm.
        seed: the seed of a controller that draws something.
        filter: the filter of an adaptive job's plan; None in other jobs.

    Raises:
        ValueError: there are no groups, or a size is not a size.
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
    """What a controller sees of a completed round.

    Attributes:
        number: the number of the round, from 1.
        decision: the decision for the round.
        squared: of each group (K,), ‖g‖² − size · deviation² of the mean gradient g: without
            bias, and so negative at times.
        deviation: (K,), of the noise in a coordinate of the mean gradient; public.
        within: of each group (K,), the noisy share of units within its clip norm; None where the
            controller asked for no bits.
        moved: the norm of the update of each group (K,).
        spent: the used share of the filter's budget, or of the rounds.
        loss: the loss after the round, on public or synthetic records; None without any.
    """

    number: int
    decision: Decision
    squared: Privatised[Array]
    deviation: tuple[float, ...]
    within: Privatised[Array] | None
    moved: Privatised[Array]
    spent: float
    loss: Privatised[float] | None
