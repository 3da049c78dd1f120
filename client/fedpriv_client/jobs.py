"""The jobs of a site, past and possible ones: the state of each, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Literal, get_args

from fedpriv.errors import ConfigError
from fedpriv.privacy.ledger.plan import Plan
from fedpriv_client.account import read_account
from fedpriv_client.orders import Approval, Asked, Orders
from fedpriv_client.proposals import KeptProposal, kept_proposals
from fedpriv_client.site_settings import SiteSettings, adapters_folder

State = Literal[
    "waits for approval",
    "refused",
    "expired",
    "not begun",
    "begun",
    "handed over",
    "finished",
    "closed",
]
STATES: tuple[State, ...] = get_args(State)
WAITS: State = "waits for approval"


@dataclass(frozen=True)
class Job:
    """Hold one proposal, or one plan of the ledger.

    Attributes:
        proposal: what was proposed; None for a job from before proposals were kept.
        paid: the number of steps that are paid for.
        approval: who said yes to it; None if nobody did, or nobody was asked.
        refusal: who said no to it, if that is known.
        account: the ledger's sums, as in `Jobs`.
    """

    plan: Plan
    state: State
    proposal: KeptProposal | None
    paid: int
    approval: Approval | None
    account: Mapping[str, Any]
    refusal: Approval | None = None

    @property
    def name(self) -> str:
        """Return the job's id."""
        return self.plan.job

    @property
    def digest(self) -> str:
        """Return the proposal's digest."""
        return self.plan.proposal

    @property
    def asked(self) -> Asked:
        """Return what a person approves."""
        return Asked(self.plan, self.account["dataset_id"], self.account["delta"])

    @property
    def epsilon(self) -> float:
        """Return an upper bound of ε for the plan by itself."""
        return _epsilon(self.plan, self.account["delta"])

    @property
    def epsilon_alone(self) -> float | None:
        """Return the same if only the site's own noise counts; None without a budget for that."""
        if self.account["budget_alone"] is None:
            return None
        return _epsilon(self.plan.alone, self.account["delta"])


@dataclass(frozen=True)
class Jobs:
    """Hold all jobs of a ledger: first those that wait, then the newest; and the ledger's sums.

    Attributes:
        account: the sums, as `fedpriv_client.account.read_account` gives them.
    """

    jobs: tuple[Job, ...]
    account: Mapping[str, Any]
    orders: Orders

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Return the jobs that wait for somebody's yes."""
        return tuple(job for job in self.jobs if job.state == WAITS)

    def find(self, name: str, digest: str | None = None) -> Job:
        """Find the job with this id or name: one that waits, or else one that was proposed.

        Args:
            digest: the digest of its proposal, if there are several.

        Raises:
            ConfigError: there is no such job, or there are several.
        """
        of_name = [job for job in self.jobs if name in (job.name, job.name.rpartition("-")[0])]
        found = [job for job in of_name if digest in (None, job.digest)]
        found = [job for job in found if job.state == WAITS] or found
        if not found:
            known = ", ".join(dict.fromkeys(job.name for job in self.jobs)) or "none yet"
            asked = name if digest is None else f"{name} {digest}"
            problem = "was not proposed to this site, or not within its limits"
            raise ConfigError(problem, key="JOB", value=asked, fix=f"Proposed were: {known}.")
        if len(found) > 1:
            several = ", ".join(f"{job.name} {job.digest}" for job in found)
            fix = f"Give the id and --digest of one: {several}."
            raise ConfigError("matches several proposals", key="JOB", value=name, fix=fix)
        return found[0]


def jobs_of(settings: SiteSettings, account: Mapping[str, Any] | None = None) -> Jobs:
    """Return the jobs of a site, from its folder.

    Args:
        account: the sums of the ledger; if None, they are read.

    Raises:
        LedgerError, ConfigError: the ledger, or what is written beside it, can't be read.
    """
    account = read_account(settings) if account is None else account
    orders = Orders.read(settings.state_dir)
    proposals = {kept.digest: kept for kept in kept_proposals(settings.state_dir)}

    def job(plan: Plan, row: Mapping[str, Any] | None = None) -> Job:
        """Return the job of a plan. A job that has begun also has a row in the sums."""
        kept, yes = proposals.get(plan.proposal), orders.approved.get(plan.proposal)
        paid = 0 if row is None else row["reserved"]
        state: State = "not begun" if row is None else "begun"
        if row is not None and paid == plan.steps:
            state = "finished"
        elif row is not None and row["closed"]:
            state = "closed"
        elif orders.refuses(plan.job):
            state = "refused"
        elif row is not None and (adapters_folder(settings.state_dir) / plan.job).exists():
            state = "handed over"  # the server says it is over; it may still ask for what is left
        elif row is None and kept is not None and kept.proposal.has_expired:
            state = "expired"
        elif settings.ask and kept is not None:  # also for a job that began before the site asked
            asked = Asked(plan, account["dataset_id"], account["delta"])
            is_approved = orders.is_approved(asked, settings.approvers, settings.approvals)
            state = state if is_approved else WAITS
        return Job(plan, state, kept, paid, yes, account, orders.refusal(plan.job))

    begun = {row["proposal"] for row in account["plans"]}
    new = [job(kept.plan) for kept in proposals.values() if kept.digest not in begun]
    old = [job(_plan(row), row) for row in reversed(account["plans"])]
    return Jobs(tuple(sorted([*new, *old], key=lambda one: one.state != WAITS)), account, orders)


def _plan(row: Mapping[str, Any]) -> Plan:
    return Plan(**{field.name: row[field.name] for field in fields(Plan)})


@lru_cache(1000)
def _epsilon(plan: Plan, delta: float) -> float:
    return plan.epsilon(delta)
