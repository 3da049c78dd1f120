"""The site's budget report, from its ledger, signed with the site's key."""

from __future__ import annotations

import json

from fedpriv.privacy.accounting.accountant import ACCOUNTANT
from fedpriv.privacy.ledger.history import UNKNOWN
from fedpriv.report.budget import (
    NUMERICS,
    STRICT_NUMERICS,
    TICKS,
    TIMING,
    BudgetReport,
    FilterUse,
    events_of,
    sign,
    trust_model,
)
from fedpriv_client.account import write_account
from fedpriv_client.held_space import write_beside
from fedpriv_client.site import Site
from fedpriv_client.site_settings import last_report

ASSUMPTIONS = (
    "The declared size and the sample rate are typed by people, never derived from records.",
    "Preparation is a function of one unit's own records and public settings.",
    "The ledger and its witnesses are not restored together from older copies.",
    "The operating system's random numbers are secret, and AES-256 and HMAC-SHA-256 are"
    " pseudorandom functions.",
    "The normal quantile function of scipy errs by less than ten times what is measured.",
)
ONE_RUN = "No other run used these records: this ledger covers one run and knows of no other."
GROWN = "That the declared size was raised, or delta lowered, did not depend on what was released."
BESIDE_OTHERS = (
    "A gradient computed beside others depends on its own unit, public settings and chance only."
)
LOST_SUMS = (
    "In plans that were lost with a newer copy of the ledger, no more sites of a secure sum were"
    " taken to collude than in those that are known."
)
SECURE_SUM = (
    "X25519, HKDF-SHA256, AES-256 and Ed25519 hide the parts of a secure sum from whoever has"
    " polynomial time; the figures alone need none of them."
)
FILTER = (
    "; plans whose noise is chosen between the steps are charged for by a Rényi filter at one order"
)
ON_TIME = (
    "There are at most a tenth more units than declared, the site's machine is at most a quarter"
    " slower than when it was tried, and nobody outside measures how busy it is."
)
ALONE = "A gradient computed alone depends on its own record, public settings and chance only."


def budget_report(site: Site, job: str) -> BudgetReport:
    """What the site's ledger says of a job, unsigned.

    Privacy:
        Public fields of the ledger only.
    """
    ledger = site.ledger
    terms, head, plan = ledger.terms, ledger.head, ledger.plan(job)
    strict, colluding = _is_strict(site), _max_colluding(site)
    use = None if plan is None else ledger.filter_use(job)
    return BudgetReport(
        site=site.settings.name,
        dataset_id=terms.dataset_id,
        unit=terms.unit,
        max_records_per_unit=terms.max_records_per_unit,
        relation=terms.relation,
        delta=terms.delta,
        declared_size=terms.declared_size,
        rule=terms.rule.name,
        guarantee=ledger.guarantee,
        accountant=ACCOUNTANT + (FILTER if ledger.is_adaptive else ""),
        numerics=STRICT_NUMERICS if strict else NUMERICS,
        timing=TICKS if _at_ticks(site) else TIMING,
        assumptions=_assumptions(site, strict=strict),
        private=terms.private,
        simulated=terms.simulated,
        epsilon_spent=ledger.epsilon_spent,
        epsilon_allocated=ledger.epsilon_allocated,
        epsilon_committed=ledger.epsilon_committed,
        budget=terms.budget,
        trust_model=trust_model(colluding),
        epsilon_alone_spent=ledger.epsilon_alone_spent,
        epsilon_alone_allocated=ledger.epsilon_alone_allocated,
        epsilon_alone_committed=ledger.epsilon_alone_committed,
        budget_alone=terms.budget_alone,
        max_colluding=colluding,
        events=() if plan is None else tuple(events_of(job, ledger.slot_events(job))),
        filter=None if use is None else FilterUse(**use),
        ledger_head=head.hash,
        ledger_rows=head.rows,
        job=job,
    )


def _is_strict(site: Site) -> bool:
    """Whether all that the claim is about was computed strictly, and whatever is still to come.

    The claim is for the life of the ledger, not for one job.
    """
    to_come = () if site.ledger.is_full else site.settings.limits.numerics
    return site.ledger.numerics.union(to_come) == {"strict"}


def _at_ticks(site: Site) -> bool:
    """Whether all that the claim is about left at public ticks, and whatever is still to come."""
    to_come = site.ledger.is_full or site.settings.limits.ticks
    return site.ledger.at_ticks and to_come and site.ledger.terms.private


def _max_colluding(site: Site) -> int | None:
    """The least of all secure sums that the claim for life is about, whatever is still to come.

    Of sums that were lost with a copy of the ledger nobody knows it, so it is taken for 0.
    """
    ledger, limits = site.ledger, site.settings.limits
    known = [] if ledger.max_colluding is None else [ledger.max_colluding]
    if ledger.terms.budget_alone is not None:
        if UNKNOWN in ledger.numerics:
            known.append(0)
        if not ledger.is_full and limits.roster is not None:
            known.append(limits.max_colluding_at_least)
    return min(known, default=None)


def _assumptions(site: Site, *, strict: bool) -> tuple[str, ...]:
    ledger = site.ledger
    stated = [
        f"{by} states that units which look like some of data set {other} are other people."
        for other, by in dict.fromkeys([*ledger.distinct, *site.distinct])
    ]
    grown = (GROWN,) if ledger.grown else ()
    alone = () if site.settings.lasting else (ONE_RUN,)
    sums = [SECURE_SUM] if _max_colluding(site) is not None else []
    if ledger.terms.budget_alone is not None and UNKNOWN in ledger.numerics:
        sums.append(LOST_SUMS)
    computed = ALONE if strict else BESIDE_OTHERS
    on_time = (ON_TIME,) if _at_ticks(site) else ()
    return (*ASSUMPTIONS, computed, *on_time, *sums, *stated, *grown, *alone)


def signed_report(site: Site, job: str) -> BudgetReport:
    """The report of a job with the site's signature; from memory."""
    return sign(budget_report(site, job), site.signing_key)


def write_report(site: Site, report: BudgetReport) -> None:
    """Write a report as ``budget.json`` into the site's folder.

    Where ledgers outlive a job, the newest of each is kept beside it, too; and over the network
    what the ledger adds up to, for whoever looks while it is in use.

    Raises:
        OSError: the disk fails, or the report is larger than what is held for it.
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
