"""The site's own page: its jobs in plain words, what they cost, and what waits for a yes.

Privacy
    The page is made of the site's settings, of proposals, and of sums over the ledger's rows.
    Except for how full a full disk is, nothing in it is computed from records. Nothing of the
    site's own models is on it (law 16).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from operator import truediv
from pathlib import Path
from typing import Any

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import FedprivError
from fedpriv.files import write_atomic
from fedpriv.privacy.accounting.shares import share_of, shares_of
from fedpriv.privacy.ledger.claims import ALONE
from fedpriv.process import read_status
from fedpriv.report.lifetime import for_one, share, share_in, terms_in
from fedpriv.report.page_parts import RULES, css_colours, templates
from fedpriv_client.held_space import full_disk
from fedpriv_client.job_words import cost, described, meaning
from fedpriv_client.jobs import jobs_of
from fedpriv_client.persons import REASONS, persons
from fedpriv_client.roster_entry import own_key
from fedpriv_client.settings import enrolment_of, site_settings
from fedpriv_client.site_settings import SiteSettings

IN_WORDS = 20  # jobs, beside those that wait; the table has all


def page(file: SiteFile, config: Path, form_key: str | None = None) -> str:
    """Return the page as it is now.

    Args:
        form_key: the key that a form has to send back; None makes a page without forms.

    Raises:
        LedgerError, ConfigError: as `fedpriv_client.jobs.jobs_of`.
    """
    settings = site_settings(file, config)
    jobs, status = jobs_of(settings), read_status(settings.state_dir)
    account, past = jobs.account, [job for job in jobs.jobs if job not in jobs.waiting]
    whole = account["budget_alone"] or account["budget"]  # even if all others work together
    figures = {"by all that the budget lets through": whole}
    template = templates("fedpriv_client").get_template("page.html.j2")
    return template.render(
        site=settings.name,
        settings=settings,
        authority=_authority(file),
        key=own_key(file),
        jobs=jobs,
        past=past,
        told=past[:IN_WORDS],
        account=account,
        budgets=list(_budgets(account)),
        words=lambda job: described(job, settings.terms.declared_size),
        cost=partial(cost, jobs),
        meaning=partial(meaning, jobs),
        part=lambda job: share_in(account, job.plan),
        for_one=for_one(account["unit"], account["delta"], figures),
        limits=list(_limits(file, settings)),
        rule=RULES[account["rule"]["name"]],
        reasons=REASONS,
        persons=persons,
        status={"connection": "none", "activity": "", "refusal": ""} | status,
        full_disk=full_disk(settings.state_dir),
        made=datetime.now(UTC),
        form_key=form_key,
        css_colours=css_colours,
    )


def write_site_page(file: SiteFile, config: Path, out: Path) -> None:
    """Write the page as a file of its own, readable by its owner only.

    Raises:
        LedgerError, ConfigError: as `page`.
    """
    write_atomic(out, page(file, config), mode=0o600)


def _budgets(account: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the budget for life under each claim of the ledger, and what is left of it."""
    terms, used = terms_in(account), account["used"]
    size = len(used) // len(terms.claims)
    for at, claim in enumerate(terms.claims):
        key, name = ("_alone", "Alone") if claim.alone else ("", "With trust in most sites")
        allocated, spent = account[f"epsilon{key}_allocated"], account[f"epsilon{key}_spent"]
        taken = used[at * size : (at + 1) * size]
        held = min(1.0, max(map(truediv, taken, claim.limit)))
        yield {
            "name": name,
            "budget": claim.budget,
            "allocated": allocated,
            "spent": spent,
            "left": max(0.0, claim.budget - allocated),
            "taken": share(held),
            "left_share": share(1 - held),
            "allocated_share": held,
            "spent_share": held * min(1.0, spent / allocated) if allocated else 0.0,
        }


def _limits(file: SiteFile, settings: SiteSettings) -> Iterator[tuple[str, str]]:
    """Yield what a job may ask for here, by the site's file."""
    allow, budget = file.allow, file.budget
    yield "ε of one job", f"at most {budget.per_job:g}"
    if allow.statement:
        yield "What it has to state", "what it is for and who answers for it, signed"
    if allow.approvers:
        yield "Who approves it", f"{allow.approvals} of {', '.join(allow.approvers)}"
    yield "Methods", ", ".join(allow.methods)
    yield "Base model", f"{allow.model}, {allow.model_digest}, and no other"
    if allow.begin is not None:
        yield "Begins at", f"{allow.begin}, {allow.begin_digest}, or at no adapter"
    yield "Noise of a step", f"at least {allow.min_noise:g} × C"
    if budget.epsilon_alone is not None:
        most = budget.epsilon_alone if budget.per_job_alone is None else budget.per_job_alone
        yield "ε of one job, alone", f"at most {most:g}, {ALONE}"
    yield "Sample rate", f"at most {100 * allow.max_rate:g}% of the units in a step"
    yield "Steps of a job", f"at most {allow.max_steps:,}"
    yield "Tokens of an example", f"at most {allow.max_length:,}"
    yield "Trained values", f"at most {allow.max_trainable:,}, of rank {allow.max_r} at most"
    yield "Looks at held-out records", "allowed" if allow.evaluation else "not allowed"
    roster = settings.limits.roster
    if roster is None:
        yield "Secure sums", "none: this site's file names no roster"
    else:
        least = allow.max_colluding_at_least
        sites = f"with the {len(roster)} sites of {roster.digest}"
        yield "Secure sums", f"{sites}, of which at least {least} have to count as dishonest"
        share = share_of(allow.min_noise, shares_of(len(roster), least))
        own = max(share, allow.min_noise_alone or 0.0)
        yield "Noise of this site alone in a step of a secure sum", f"at least {own:.3g} × C"


def _authority(file: SiteFile) -> str | None:
    """Return the fingerprint of the authority that signed the enrolment; None if unreadable."""
    with suppress(FedprivError):
        return None if file.server.plain else enrolment_of(file).manifest.ca
    return None
