"""What it costs to choose noise and rates slot by slot, beside the same plan with fixed noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedpriv.privacy.accounting.filter import RdpFilter, best_order, calibrate_filtered
from fedpriv.privacy.accounting.planning import Planned


@dataclass(frozen=True)
class Filtered:
    """The cost of a plan with noise and rates chosen slot by slot, beside fixed noise.

    Attributes:
        order: α of the filter with the noise below.
        noise_multiplier: the noise that the filter needs for the ε of the plan.
        noise_percent: how much more that is than the plan's, in per cent.
        epsilon: ε of a filter with the plan's own noise, at the best order for it or the one given;
            infinite where there is no bound.
        epsilon_percent: how much more that is than the ε of the plan, in per cent.

    Privacy:
        Public numbers. The price of choosing by what was released: the theorem that allows for it
        adds up at one fixed order; see `fedpriv.privacy.accounting.filter`.
    """

    order: int
    noise_multiplier: float
    noise_percent: float
    epsilon: float
    epsilon_percent: float


def filtered(planned: Planned, order: int | None = None) -> Filtered:
    """Compute what the same steps cost as an adaptive plan.

    Args:
        order: α, where a ledger has fixed it; None for the best one.

    Raises:
        AccountingError: no order of that number, or no noise with which it meets the ε of the plan.
    """
    event, delta = planned.event, planned.delta
    q, sigma, steps = event.sample_rate, event.noise_multiplier, int(event.count)
    target = planned.epsilon if planned.target_epsilon is None else planned.target_epsilon
    noise, found = calibrate_filtered(target, delta, q, steps, order)
    at_best = best_order(q, sigma, steps, delta) if order is None else order
    epsilon = RdpFilter(at_best, q, sigma, steps).epsilon(delta)
    more = epsilon / planned.epsilon - 1 if planned.epsilon else math.inf
    return Filtered(found, noise, 100 * (noise / sigma - 1), epsilon, 100 * more)
