"""Price what it costs to choose settings on private records, beside the job they are for.

Everything here is at the rate and the noise of the job, so steps add up as those of one plan.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.planning import Planned, finite
from fedpriv.privacy.ledger.life import MANY
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import RdpRule

TRIAL = 10  # a trial job has one step for so many steps of the job
REPEATED = 5  # trainings, of which somebody reports the best


def price_choosing(
    planned: Planned, slots: int | None, budget: float | None = None
) -> dict[str, Any]:
    """Price a trial job, a look, and repeated training.

    Args:
        planned: the job.
        slots: steps of a look; None if the job can have none.
        budget: ε that a site's people have for life, in a ledger of the rule `rdp`.

    Returns:
        For JSON: the budget, the order of its rule, the share of it that the job takes, how many
        such jobs fit (up to `life.MANY`), and the price of each way to choose: its steps, their ε
        with and without the job, and their share of the budget. None without a budget or a look.

    Raises:
        ConfigError: the budget is not above 0 and finite.
        LedgerError: a budget so small that the rule has no order for it.

    Privacy:
        Public numbers alone.
    """
    event, delta = planned.event, planned.delta
    order = share_of_step = None
    if budget is not None:
        if not 0 < budget < math.inf:
            raise ConfigError(
                "must be above 0 and finite", key="--budget", value=budget, fix="Such as 12."
            )
        rule = RdpRule.best(budget, delta)
        step = Plan("job", "any", event.sample_rate, event.noise_multiplier, 1.0, 1, "none")
        (most,), (one,) = rule.limit(budget, delta), rule.cost(step, 1, delta)
        order, share_of_step = rule.order, one / most

    def priced(steps: int, others: int) -> dict[str, Any]:
        def epsilon(count: int) -> float | None:
            return finite(epsilon_upper([replace(event, count=count)], delta))

        return {
            "steps": steps,
            "epsilon": epsilon(steps),
            "epsilon_with_job": epsilon(steps + others),
            "share": None if share_of_step is None else share_of_step * steps,
        }

    job_share = None if share_of_step is None else share_of_step * event.count
    return {
        "budget": budget,
        "order": order,
        "job_share": job_share,
        "jobs": None if job_share is None else int(1 / max(job_share, 1 / MANY)),
        "trial": priced(math.ceil(event.count / TRIAL), event.count),
        "look": None if slots is None else priced(slots, event.count),
        "repeated": priced(REPEATED * event.count, 0),
    }
