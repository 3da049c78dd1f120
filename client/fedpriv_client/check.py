"""What the site would answer to a job, found out before anybody asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedpriv.config.groups import GroupTerms
from fedpriv.config.load import load_job
from fedpriv.errors import ConfigError, FedprivError, LedgerInUseError
from fedpriv.gradients.groups import Groups
from fedpriv.methods.proposal import propose
from fedpriv.models.vector import TrainableVector
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.ledger.ledger import Plan
from fedpriv.privacy.ledger.life import life_with
from fedpriv.privacy.life import Life
from fedpriv.private_training.pool import WorkerPool
from fedpriv.protocol import Proposal
from fedpriv_client.site_job import check_model, recipe_of
from fedpriv_client.site_ledger import open_ledger
from fedpriv_client.site_settings import SiteSettings

_ANY = "sha256:" + "0" * 64  # the digest of what a federation file does not say


@dataclass
class Verdict:
    """What a site would answer to a proposal.

    Attributes:
        refusals: why the site would refuse; none if it would take part.
        budget, budget_alone: ε that there is for life.
        unchecked: what could not be found out.
        look_steps: of the plan's steps, how many look at held-out records.
        plan: what it would commit to; None if there is no such plan.
        epsilon: of the plan by itself, at the ledger's δ, an upper bound.
        epsilon_alone: the same if every other site of a secure sum worked with the server; None
            where the plan is of no such sum.
        without_looks: ε of the steps that train, with the same noise; None where there are no
            looks.
        allocated: ε of the ledger with it; None if it does not fit, or can't be looked at.
        allocated_alone: the same of the claim alone; None also where the ledger has none.
        life: what it would take of the budget for life; None as of `allocated`.
        trained: parameters that would be trained; None if the model was not loaded.
    """

    refusals: list[str]
    budget: float
    budget_alone: float | None
    look_steps: int
    unchecked: list[str] = field(default_factory=list)
    plan: Plan | None = None
    epsilon: float | None = None
    epsilon_alone: float | None = None
    without_looks: float | None = None
    allocated: float | None = None
    allocated_alone: float | None = None
    life: Life | None = None
    trained: int | None = None


def read_proposal(path: Path, settings: SiteSettings) -> Proposal:
    """Read the proposal of a JSON file, or make the one that a federation file would lead to.

    A federation file does not state the digest of its model. The digest is taken to be the one
    that this site allows, and the model's name there is not looked up. The sites of a secure sum
    are taken to be those of this site's own roster.

    Raises:
        ConfigError: the file can't be read, or it has a secure sum and this site has no roster.
        ProtocolError: the file is JSON, but no proposal.
    """
    if path.suffix != ".json":
        config = load_job(path, [f"model.name={json.dumps(settings.model)}"])
        digest, roster = settings.limits.base_digest, settings.limits.roster
        if config.max_colluding is not None and roster is None:
            problem = "has a secure sum, and this site's file names no roster"
            where = "in the site's file: [secure_sum]"
            fix = f"Compare a roster with the other sites, and name it {where}."
            trust = config.privacy.trust
            raise ConfigError(problem, file=path, key="privacy.trust", value=trust, fix=fix)
        name, section, groups = config.job.name, config.controller, None
        if section is not None:  # as far as an answer depends on its groups without a model
            groups = GroupTerms(by=section.groups, count=1, adaptive=section.adaptive)
        return propose(config, job_id=name, base=digest, vector=_ANY, roster=roster, groups=groups)
    try:
        return Proposal.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't be read: {error}", file=path) from None


def _of_model(proposal: Proposal, vector: TrainableVector) -> Proposal:
    """Fit the proposal of a federation file to the model that was loaded here."""
    found: dict[str, object] = {"vector_digest": vector.digest}
    if proposal.groups is not None:
        count = len(Groups.of(vector.names, vector.shapes, proposal.groups.by))
        found["groups"] = proposal.groups.model_copy(update={"count": count})
    return proposal.model_copy(update=found)


def check_proposal(
    settings: SiteSettings, proposal: Proposal, pool: WorkerPool | None = None
) -> Verdict:
    """Find out what the site would answer; records are not read, and the ledger is not changed.

    Args:
        pool: loads the model, to check it too, if nothing else is in the way.

    Raises:
        LedgerError: there is no ledger, or it can't be used.
        ConfigError: the settings are not those that the ledger was made with.
    """
    limits, terms = settings.limits, settings.terms
    with suppress(LedgerInUseError), open_ledger(settings, reading=True) as ledger:
        terms = ledger.terms  # whose rule is the one that counts
    refusals = [str(refusal) for refusal in limits.refusals(proposal, terms)]
    look_steps = proposal.steps - proposal.training_steps
    found = Verdict(refusals, terms.budget, terms.budget_alone, look_steps)
    if proposal.vector_digest == _ANY:
        found.unchecked.append("The job's model: taken to be the one that this site allows.")
    with _noting(refusals):
        settings.check_fields(proposal)
    with _noting(refusals):
        plan = found.plan = limits.calibrated(proposal, terms)
        found.epsilon = plan.epsilon(terms.delta)
        if plan.is_shared:
            found.epsilon_alone = epsilon_upper([plan.alone.event()], terms.delta)
            limits.check_cost(plan, terms)
        if look_steps:
            training = plan.event(proposal.training_steps)
            found.without_looks = epsilon_upper([training], terms.delta)
    try:
        with open_ledger(settings, reading=True) as ledger, _noting(refusals):
            if found.plan is not None:
                found.allocated, found.allocated_alone = ledger.check_both(found.plan)
                found.life = life_with(ledger.terms, ledger.history.used, found.plan)
    except LedgerInUseError:
        again = "If this site's client is running, stop it and check again."
        found.unchecked.append(f"What is left of the budget: {settings.ledger} is in use. {again}")
    if pool is None or found.plan is None or refusals:
        found.unchecked.append("The model: it was not loaded.")
        return found
    with _noting(refusals), pool.borrow(recipe_of(proposal, settings)) as worker:
        found.trained = worker.vector.size
        if proposal.vector_digest == _ANY:
            proposal = _of_model(proposal, worker.vector)
        check_model(worker, proposal, found.plan, limits, terms)
    return found


@contextmanager
def _noting(refusals: list[str]) -> Iterator[None]:
    """Go on after a refusal, for there may be others."""
    try:
        yield
    except FedprivError as error:
        refusals.append(str(error))
