"""Whether sites can pay for a job, as far as their last budget reports say."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.errors import BudgetError, FedprivError
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.accounting.rdp import rdp
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.report.budget import BudgetReport, read
from fedpriv.report.figures import lower, upper


def last_reports(state: Path) -> dict[str, BudgetReport]:
    """Return the newest report of each site, from all jobs of a lasting coordinator."""
    found = []
    for path in state.glob("runs/*/sites/*/budget.json"):
        with suppress(FedprivError):  # commands that show the run report it
            found.append(read(path))
    return {one.site: one for one in sorted(found, key=lambda report: report.ledger_rows)}


def check_affordable(config: JobConfig, reports: Iterable[BudgetReport]) -> None:
    """Refuse a job that too few sites can pay for, judging by each site's last report.

    A ledger with the rule `rdp` is assumed to have its default order. Jobs with a secure sum are
    not checked, because their cost depends on more than a report states.

    Raises:
        BudgetError: names the sites, what each has left, and what the job would cost it.
    """
    if config.privacy.trust != "local":
        return
    members, short = {site.name for site in config.sites}, {}
    for report in reports:
        left, cost = max(report.budget - report.epsilon_allocated, 0.0), _cost(config, report)
        if report.site in members and cost > left:
            short[report.site] = f"{report.site} has ε = {lower(left)} left and needs {upper(cost)}"
    if len(members) - len(short) < config.job.min_sites:
        raise BudgetError(
            f"{len(members) - len(short)} sites can pay for this job, and {config.job.min_sites}"
            f" are needed (job.min_sites). By their last reports, {', '.join(short.values())}."
            " Propose less, or give --anyway: a site may have got another limit since."
        )


def _cost(config: JobConfig, report: BudgetReport) -> float:
    """Return what the job adds to the ε that a site's ledger has allocated."""
    privacy = config.privacy
    match report.rule:
        case "rdp":
            order = RdpRule.best(report.budget, report.delta).order
            rate, steps = privacy.sample_rate, config.slots
            noise = calibrate_noise(privacy.epsilon, report.delta, rate, steps)
            return steps * float(rdp(rate, noise, (order,))[0])
        case "sum":
            return privacy.epsilon
        case _:  # one plan for life
            return report.budget if report.epsilon_allocated else 0.0
