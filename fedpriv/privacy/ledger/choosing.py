"""Price what it costs to choose settings on private records, beside the job they are for.

Everything here is at the rate and the noise of the job, so steps add up as those of one plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fedpriv.errors import ConfigError
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.planning import Planned, finite
from fedpriv.privacy.ledger.life import MANY
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import RdpRule

TRIAL = 10  # a trial job has one step for so many steps of the job
REPEATED = 5  # trainings, of which somebody reports the best


@dataclass(frozen=True)
class Priced:
    """Steps that choose, with the job's rate and noise.

    Attributes:
        epsilon: ε of these steps by themselves; None without a finite bound.
        epsilon_with_job: ε of them and the job together.
        share: the share of a budget for life under the rule `rdp`; None without one.
    """

    steps: int
    epsilon: float | None
    epsilon_with_job: float | None
    share: float | None


@dataclass(frozen=True)
class Choosing:
    """The prices of choosing settings.

    Attributes:
        budget: ε for life, if it was given.
        order: α, the order of the rule `rdp` for that budget.
        job_share: the share of the job itself.
        jobs: the number of such jobs that fit in the budget, up to `life.MANY`.
        trial: a job of a tenth of the steps.
        look: a look at held-out records; None under a secure sum, which has none.
        repeated: the job, `REPEATED` times.
    """

    budget: float | None
    order: int | None
    job_share: float | None
    jobs: int | None
    trial: Priced
    look: Priced | None
    repeated: Priced


def price_choosing(planned: Planned, slots: int | None, budget: float | None = None) -> Choosing:
    """Price a trial job, a look, and repeated training.

    Args:
        planned: the job.
        slots: steps of a look; None if the job can have none.
        budget: ε that a site's people have for life, in a ledger of the rule `rdp`.

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

    def priced(steps: int, others: int) -> Priced:
        def epsilon(count: int) -> float | None:
            return finite(epsilon_upper([replace(event, count=count)], delta))

        share = None if share_of_step is None else share_of_step * steps
        return Priced(steps, epsilon(steps), epsilon(steps + others), share)

    job_share = None if share_of_step is None else share_of_step * event.count
    return Choosing(
        budget=budget,
        order=order,
        job_share=job_share,
        jobs=None if job_share is None else MANY if job_share * MANY <= 1 else int(1 / job_share),
        trial=priced(math.ceil(event.count / TRIAL), event.count),
        look=None if slots is None else priced(slots, event.count),
        repeated=priced(REPEATED * event.count, 0),
    )
