"""Make the site's budget report from its ledger, signed with the site's key."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fedpriv.privacy.ledger.history import EPSILONS, UNKNOWN
from fedpriv.privacy.ledger.life import life_with
from fedpriv.report.budget import BudgetReport, events_of, sign
from fedpriv.report.words import Basis, words
from fedpriv_client.account import write_account
from fedpriv_client.held_space import write_beside
from fedpriv_client.site import Site
from fedpriv_client.site_settings import last_report


def budget_report(site: Site, job: str) -> BudgetReport:
    """Return what the site's ledger says about a job, unsigned.

    Privacy:
        Public fields of the ledger only.
    """
    ledger, basis = site.ledger, _basis(site)
    terms, head, plan = ledger.terms, ledger.head, ledger.plan(job)
    stated = {**asdict(terms), "rule": terms.rule.name}
    del stated["witnessed"]
    found: dict[str, Any] = {}
    if plan is not None:
        found["events"] = events_of(plan, [slot for slot, _ in ledger.slots(job)])
        if not ledger.is_full:
            used, takes = ledger.history.used, ledger.history.used_by([job])
            found["life"] = life_with(terms, used, plan, takes)
    return BudgetReport(
        **{**words(basis), "guarantee": ledger.guarantee},  # it may say that it was not kept
        **{figure: getattr(ledger, figure) for figure in EPSILONS},
        site=site.settings.name,
        **stated,
        max_colluding=basis.max_colluding,
        ledger_head=head.hash,
        ledger_rows=head.rows,
        job=job,
        **found,
    )


def _max_colluding(site: Site) -> int | None:
    """Return the least `max_colluding` of all secure sums, done or to come, in the claim for life.

    The figure of sums that were lost with a copy of the ledger is unknown, so it counts as 0.
    """
    ledger, limits = site.ledger, site.settings.limits
    known = [] if ledger.max_colluding is None else [ledger.max_colluding]
    if ledger.terms.budget_alone is not None:
        if UNKNOWN in ledger.numerics:
            known.append(0)
        if not ledger.is_full and limits.roster is not None:
            known.append(limits.max_colluding_at_least)
    return min(known, default=None)


def _basis(site: Site) -> Basis:
    ledger, limits = site.ledger, site.settings.limits
    # The claim is for the life of the ledger, not for one job.
    to_come = () if ledger.is_full else limits.numerics
    return Basis(
        rule=ledger.terms.rule.name,
        strict=ledger.numerics.union(to_come) == {"strict"},
        max_colluding=_max_colluding(site),
        lost_sums=ledger.terms.budget_alone is not None and UNKNOWN in ledger.numerics,
        distinct=tuple(dict.fromkeys([*ledger.distinct, *site.distinct])),
        grown=ledger.grown,
        one_run=not site.settings.lasting,
        at_ticks=ledger.at_ticks and limits.ticks and ledger.terms.private,
    )


def signed_report(site: Site, job: str, *, life: bool = True) -> BudgetReport:
    """Return the report of a job with the site's signature, made from memory.

    Args:
        life: include what the job takes of the budget for life, which older coordinators can't
            read.
    """
    report = budget_report(site, job)
    without = report if life else report.model_copy(update={"life": None})
    return sign(without, site.signing_key)


def write_report(site: Site, report: BudgetReport) -> None:
    """Write a report as ``budget.json`` into the site's folder.

    If ledgers outlive a job, the newest report of each ledger is also kept beside it. Over the
    network the ledger's sums are written, too, for people who look while it is in use.

    Raises:
        OSError: the disk fails, or the report is larger than any file beside an answer may be.
    """
    own = last_report(site.settings, report.dataset_id)
    text = json.dumps(report.model_dump(mode="json"), indent=2) + "\n"
    for path in dict.fromkeys((own, site.settings.report)):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_beside(path, text, held=site.files)
    if site.settings.server is not None:
        write_account(site.ledger, site.settings, site.files)


def write_budget_report(site: Site, job: str) -> BudgetReport:
    """Sign the report of a job, and write it as `write_report` does."""
    report = signed_report(site, job)
    write_report(site, report)
    return report
