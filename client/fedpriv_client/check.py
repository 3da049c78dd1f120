"""Find out what the site would answer to a job, before a server proposes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from fedpriv.config.load import load_job
from fedpriv.doctor import memory
from fedpriv.doctor.finding import Finding, look
from fedpriv.errors import ConfigError, FedprivError, LedgerInUseError
from fedpriv.methods.proposal import propose
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.ledger.ledger import Plan
from fedpriv.privacy.ledger.life import life_with
from fedpriv.privacy.life import Life
from fedpriv.private_training.pool import WorkerPool
from fedpriv.private_training.worker import ModelRecipe
from fedpriv.protocol import Proposal
from fedpriv.report.figures import upper
from fedpriv.report.lifetime import in_words
from fedpriv_client.site_job import check_model, recipe_of
from fedpriv_client.site_ledger import open_ledger
from fedpriv_client.site_settings import SiteSettings

_ANY = "sha256:" + "0" * 64  # a digest, where a federation file states none


def read_proposal(path: Path, settings: SiteSettings) -> Proposal:
    """Make the proposal that a federation file would lead to.

    A federation file does not state the digest of its model. So the digest that this site allows is
    assumed, and the model's name in the file is not looked up. The sites of a secure sum are
    assumed to be those of this site's own roster.

    Raises:
        ConfigError: the file can't be read, or it has a secure sum and this site has no roster.
    """
    config = load_job(path, [f"model.name={json.dumps(settings.model)}"])
    digest, roster = settings.limits.base_digest, settings.limits.roster
    if config.max_colluding is not None and roster is None:
        problem = "has a secure sum, and this site's file names no roster"
        where = "in the site's file: [secure_sum]"
        fix = f"Compare a roster with the other sites, and name it {where}."
        trust = config.privacy.trust
        raise ConfigError(problem, file=path, key="privacy.trust", value=trust, fix=fix)
    return propose(config, job_id=config.job.name, base=digest, vector=_ANY, roster=roster)


def check_proposal(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool | None = None
) -> Iterator[Finding]:
    """Find out what the site would answer, without reading records or changing the ledger.

    Args:
        proposal: as `read_proposal` makes it.
        pool: loads the model to check it, too, if nothing else prevents the job.

    Yields:
        Why the site would refuse, and what could not be checked. Then, if it would take part, what
        that costs and how much memory a step takes.

    Raises:
        LedgerError: there is no ledger, or it can't be used.
        ConfigError: the settings are not those that the ledger was made with.
    """
    limits, terms = settings.limits, settings.terms
    with suppress(LedgerInUseError), open_ledger(settings, reading=True) as ledger:
        terms = ledger.terms  # its rule is the one that counts
    refusals = [str(refusal) for refusal in limits.refusals(proposal, terms)]
    unchecked = ["The job's model: assumed to be the one that this site allows."]
    with _noting(refusals):
        settings.check_fields(proposal)
    plan: Plan | None = None
    life: Life | None = None
    costs: list[float] = []
    allocated: tuple[float | None, float | None] = (None, None)
    with _noting(refusals):
        plan = limits.calibrated(proposal, terms)
        costs.append(plan.epsilon(terms.delta))
        if plan.is_shared:
            costs.append(epsilon_upper([plan.alone.event()], terms.delta))
            limits.check_cost(plan, terms)
    try:
        with open_ledger(settings, reading=True) as ledger, _noting(refusals):
            if plan is not None:
                allocated = ledger.check_both(plan)
                life = life_with(ledger.terms, ledger.history.used, plan)
    except LedgerInUseError:
        again = "If this site's client is running, stop it and check again."
        unchecked.append(f"What is left of the budget: {settings.ledger} is in use. {again}")
    if pool is None or plan is None or refusals:
        unchecked.append("The model: it was not loaded.")
        pool = None
    else:
        with _noting(refusals), pool.borrow(recipe_of(proposal, settings)) as worker:
            known = proposal.model_copy(update={"vector_digest": worker.vector.digest})
            check_model(worker, known, plan, limits, terms)
    yield from (Finding("job", False, refusal, 4) for refusal in refusals)
    yield from (Finding("job", None, text) for text in unchecked)
    if plan is None or refusals:
        return
    budgets = (terms.budget, terms.budget_alone)
    prices = [_price(*given) for given in zip(costs, allocated, budgets, strict=False)]
    yield Finding("job", True, _cost(plan, prices, proposal.steps - proposal.training_steps, life))
    if settings.ask:
        yield Finding("job", True, "waits until somebody here approves it: fedpriv-client approve")
    if pool is not None:
        yield look("step", partial(_step, pool, recipe_of(proposal, settings)))


def _cost(plan: Plan, prices: list[str], looks: int, life: Life | None) -> str:
    """Say what a job's plan costs, also if the other sites can't be trusted.

    Args:
        prices: the price of the plan; for a secure sum, also the price if every other site works
            with the server.
        looks: how many of the plan's steps look at held-out records.
        life: what the plan takes of the budget for life; None if the ledger can't be read.
    """
    told = (
        f"{plan.steps} steps at rate {plan.sample_rate:g} with noise {plan.noise_multiplier:.3f}:"
        f" {prices[0]}"
    )
    if looks:
        told += f"; {looks} of the steps look at held-out records"
    if plan.is_shared:
        told += (
            f". It is a secure sum: this holds while at most {plan.max_colluding} of the sites in"
            f" it work with the server or leave out their noise; if all others do, {prices[1]}"
        )
    return told if life is None else f"{told}. {in_words(life, asks=True)}"


def _price(epsilon: float, allocated: float | None, budget: float | None) -> str:
    with_all = "" if allocated is None else f", {upper(allocated)} of {budget:g} with earlier jobs"
    return f"ε = {upper(epsilon)} by itself{with_all}"


def _step(pool: WorkerPool, recipe: ModelRecipe) -> str:
    with pool.borrow(recipe) as worker:
        return memory.step(worker)


@contextmanager
def _noting(refusals: list[str]) -> Iterator[None]:
    """Note a refusal and go on, because there may be others."""
    try:
        yield
    except FedprivError as error:
        refusals.append(str(error))
