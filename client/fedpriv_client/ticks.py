"""Public ticks: they hide how long a computation on private records takes (law 19).

The time of an answer shows how many units were drawn and how long their texts are. So the part of
it that depends on records ends at a tick: after a time that is known without the records, or after
the next multiple of that time.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from fedpriv.data.encode import Example
from fedpriv.data.store import Unit
from fedpriv.models.vector import Vector
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.mechanism.clip import ClippedSum
from fedpriv.private_training.method import UnitSum
from fedpriv.private_training.microbatch import private_microbatch
from fedpriv.private_training.worker import Worker
from fedpriv_client.site_job import SiteJob
from fedpriv_client.site_settings import SiteSettings

log = logging.getLogger(__name__)
SLOWER = 1.25  # times slower than in the trial a machine may be
COPIES = 4 / 3  # times its records a filled-up batch may have (`batches_of`, if 1 is a size)
LEAST = 0.1  # seconds that each tick has besides, for what else a machine does
MORE = 1.1  # there may be this many times the declared number of units
STEPS = 1e6  # the most that all jobs of a ledger have together
SHARE = 1e-6  # of δ, for more units in any of these steps; δ may be lowered a thousandfold later
MOST_EPSILON = 50.0  # the largest ε for which that holds
TRIES = 3
PREPARATION = 3.0, 2e-3  # seconds, and further seconds for each record


class AtTicks:
    """Do what a step computes of its sample at a tick; for all else act as the method.

    Privacy:
        The time that the sum takes is a multiple of `seconds`. That it is more than one of them has
        a chance of at most β (`most_units`), as long as the machine computes at the speed at which
        it was tried. With T steps that adds (1 + e^ε) T β to δ: let E be that none is late. For any
        set S of outputs and times, P(S) ≤ P(S, E) + Tβ, and without lateness the time is a
        constant, so P(S, E) ≤ e^ε (P'(S) + Tβ) + δ.
    """

    def __init__(self, method: UnitSum, seconds: float) -> None:
        self._method, self.seconds = method, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def clipped_sum(self, worker: Worker, units: Sequence[Unit], *settings: Any) -> ClippedSum:
        """Compute the method's clipped sum, and wait for the tick."""
        worker.is_settled = True  # a trial here would take the time of a drawn length
        try:
            with until_tick(self.seconds):
                return _computed(self._method, worker, units, *settings)
        finally:
            worker.is_settled = False


@contextmanager
def until_tick(seconds: float) -> Iterator[None]:
    """Let a block whose time depends on records end at a multiple of `seconds`."""
    began = time.monotonic()
    try:
        yield
    finally:
        ticks = max(1, math.ceil((time.monotonic() - began) / seconds))
        if ticks > 1:
            log.warning(
                "This site is late by %d ticks of %.2f s, which tells something about its records."
                " Run nothing else on this machine. If the site just started, raise"
                " site.preparation.",
                ticks - 1,
                seconds,
            )
        time.sleep(max(0.0, began + ticks * seconds - time.monotonic()))


def at_ticks(
    method: Any, worker: Worker, job: SiteJob, vector: Vector, units: int, rate: float, terms: Terms
) -> Any:
    """Wrap a prepared method so that its sums end at ticks, if the plan has ticks.

    Args:
        units: the declared number of units that the sample is drawn from.
        rate: the step's sample rate.

    Privacy:
        The time is tried on random texts of the greatest length; records have no part in it.
    """
    if not job.plan.ticks:
        return method
    kind = type(method).__name__
    # Tried again for each request: a server could send values that make a processor slower.
    tries = 1 if kind in job.seconds_a_record else 1 + TRIES  # the first try also loads code
    seconds = _seconds_a_record(method, worker, job, vector, tries)
    least = job.seconds_a_record.setdefault(kind, seconds)
    records = most_units(units, rate, terms) * terms.max_records_per_unit
    copies = 1.0 if private_microbatch(worker) == 1 else COPIES
    return AtTicks(method, LEAST + SLOWER * copies * records * max(least, seconds))


def _seconds_a_record(
    method: UnitSum, worker: Worker, job: SiteJob, vector: Vector, tries: int
) -> float:
    """Time the longest record by itself. A batch takes no longer than its records one by one."""
    mask = torch.ones(1, worker.recipe.model.max_length, dtype=torch.int64)
    batch = worker.random_batch(mask, seed=1)
    [ids], [label] = batch.input_ids.tolist(), batch.labels.tolist()
    unit = (Example(ids, label),)
    took = []
    for _ in range(tries):
        began = time.monotonic()
        _computed(method, worker, [unit], vector, job.plan.clip_norm, job.plan.numerics)
        took.append(time.monotonic() - began)
    return max(took[1:] or took)


def _computed(method: UnitSum, worker: Worker, units: Sequence[Unit], *settings: Any) -> ClippedSum:
    found = method.clipped_sum(worker, units, *settings)
    if worker.device != "cpu":
        torch.cuda.synchronize(worker.device)  # else this wait would come after the tick
    return found


def most_units(declared: int, rate: float, terms: Terms) -> int:
    """Return how many units a tick has time for: more are drawn with a chance of at most β.

    Args:
        declared: units to draw from; there may be `MORE` times as many.
        rate: the sample rate.
        terms: the ledger's terms; their ε, capped at `MOST_EPSILON`, and δ give β.
    """
    epsilon = min(MOST_EPSILON, terms.budget_alone or terms.budget)
    beta = SHARE * terms.delta / (STEPS * (1 + math.exp(epsilon)))
    return _quantile(math.ceil(MORE * declared), rate, beta)


@cache
def _quantile(units: int, rate: float, beta: float) -> int:
    """Return the least k with P(Binomial(units, rate) > k) ≤ β."""
    from scipy.stats import binom

    # `isf` of scipy loses all digits of so small a chance.
    return bisect_left(
        range(units), True, key=lambda most: bool(binom.sf(most, units, rate) <= beta)
    )


def preparation(settings: SiteSettings) -> float:
    """Return the seconds after which the records of a site are ready for a proposal."""
    if settings.preparation is not None:
        return settings.preparation
    terms, limits = settings.terms, settings.limits
    units = terms.declared_size + (limits.held_out or 0) * limits.evaluation
    return PREPARATION[0] + PREPARATION[1] * MORE * units * terms.max_records_per_unit
