"""`fedpriv-client jobs` and `approve`: what a person at the command line sees and decides."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedpriv.config.site_file import SiteFile
from fedpriv.errors import FedprivError
from fedpriv.report.figures import upper
from fedpriv.report.lifetime import share_in
from fedpriv.terminal import confirm
from fedpriv_client import persons
from fedpriv_client.job_words import cost, described, meaning
from fedpriv_client.jobs import WAITS, Job, Jobs, jobs_of
from fedpriv_client.orders import Said
from fedpriv_client.roster_entry import own_key
from fedpriv_client.settings import site_settings


def list_jobs(file: SiteFile, config: Path, *, as_json: bool) -> None:
    """Print the jobs of a site."""
    jobs = jobs_of(site_settings(file, config))
    if as_json:
        print(json.dumps([_facts(job, jobs) for job in jobs.jobs], indent=2))
        return
    if not jobs.jobs:
        print("No job was proposed to this site yet, or none within its limits.")
        return
    longest = max(len(job.name) for job in jobs.jobs)
    first = Column("job", no_wrap=True, min_width=longest)  # whole, so that it can be copied
    table = Table(first, "state", "steps", "ε by itself", "of the budget", "decided by")
    for job in jobs.jobs:
        alone = "" if job.epsilon_alone is None else f", alone {upper(job.epsilon_alone)}"
        steps, epsilon = f"{job.paid} of {job.plan.steps}", f"{upper(job.epsilon)}{alone}"
        part, who = share_in(jobs.account, job.plan), escape("; ".join(persons.persons(job)))
        table.add_row(job.name, job.state, steps, epsilon, part, who)
    Console().print(table)
    print(f"Key that signs the reports: {own_key(file)}")
    if jobs.waiting:
        print("To see a job in full and decide: fedpriv-client approve JOB. To refuse: refuse JOB.")


def waiting(file: SiteFile, config: Path) -> list[str]:
    """Return the ids of the jobs that wait for approval; no ids if the ledger can't be read."""
    with suppress(FedprivError):
        return [job.name for job in jobs_of(site_settings(file, config)).waiting]
    return []


def approve(
    file: SiteFile, config: Path, name: str, digest: str | None, said: Said, *, yes: bool
) -> None:
    """Show a proposal, ask for a yes, and then let the site take part in it.

    Args:
        said: who approves, and why.

    Raises:
        ConfigError: no such job was proposed, or there is nobody to ask.
        JobRefusedError: the job is refused.
    """
    settings = site_settings(file, config)
    jobs = jobs_of(settings)
    job = jobs.find(name, digest)
    if job.state == "refused":
        jobs.orders.approving(job.asked, said)  # raises, and says how to take the refusal back
    if job.state != WAITS:
        print(f"Job {job.name} does not wait for approval: {job.state}.")
        return
    print(f"{job.name}, {job.digest}")
    for key, text in described(job, settings.terms.declared_size):
        print(f"  {key}: {text}")
    print(f"  What it costs: {cost(jobs, job)}")
    print(f"  What that means: {meaning(jobs, job)}")
    confirm("Approve it?", yes=yes)
    print(f"Approved. {persons.approve(settings, job, said)}")


def _facts(job: Job, jobs: Jobs) -> dict[str, Any]:
    kept = job.proposal
    return {
        "job": job.name,
        "state": job.state,
        "proposal": job.digest,
        "method": job.plan.method,
        "steps": job.plan.steps,
        "paid": job.paid,
        "epsilon": job.epsilon,
        "epsilon_alone": job.epsilon_alone,
        "share": share_in(jobs.account, job.plan),
        "server": None if kept is None else kept.server,
        "first_proposed": None if kept is None else kept.first.isoformat(),
        "approved": None if job.approval is None else job.approval.model_dump(mode="json"),
        "refused": None if job.refusal is None else job.refusal.model_dump(mode="json"),
    }
