"""A job as there are many, to find out whether a site's budget and cap go together at all."""

from __future__ import annotations

from fedpriv.config.site_file import SiteFile
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.life import life_with
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.rules import Amounts
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.life import Life

RATE, STEPS = 0.05, 100  # within the site's own limits
_LESS = 0.8


def usual_job(file: SiteFile, terms: Terms, used: Amounts) -> tuple[float, Life]:
    """Return the ε of a usual job that fits the budget, and what it takes of it.

    Args:
        used: by the jobs that were accepted, as `History.used`.

    Returns:
        The cap of the site's file if such a job fits; else the largest of some smaller ones, or the
        smallest of them.
    """
    epsilon = file.budget.per_job
    life = _life(file, terms, used, epsilon)
    while life.more < 0 and epsilon > file.budget.per_job / 100:
        epsilon *= _LESS
        life = _life(file, terms, used, epsilon)
    return epsilon, life


def pace(file: SiteFile) -> tuple[float, int]:
    """Return the sample rate and the steps of a usual job, within the site's own limits."""
    return min(RATE, file.allow.max_rate), min(STEPS, file.allow.max_steps)


def _life(file: SiteFile, terms: Terms, used: Amounts, epsilon: float) -> Life:
    rate, steps = pace(file)
    noise = max(calibrate_noise(epsilon, terms.plan_delta, rate, steps), file.allow.min_noise)
    return life_with(terms, used, Plan("usual", "dp-lora", rate, noise, 1.0, steps, ""))
