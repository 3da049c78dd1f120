"""Describe a proposed job in plain words, for the people who decide. All of it is public."""

from __future__ import annotations

from collections.abc import Iterator

from fedpriv.privacy.ledger.claims import ALONE
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.protocol import Proposal
from fedpriv.report.figures import small, upper, when
from fedpriv.report.lifetime import for_one, in_words, life_in
from fedpriv_client.jobs import Job, Jobs
from fedpriv_client.stated import stated

METHODS = {
    "dp-lora": "the gradients of the records drawn, each clipped, are added up",
    "pe-sgd": "the gradients of the records drawn are expressed through those of a synthetic set"
    " that the coordinator sends, with one number for each of its records",
}


def described(job: Job, declared_size: int) -> Iterator[tuple[str, str]]:
    """Describe what a job trains, how and how long, what would leave, and who proposed it.

    Args:
        declared_size: the site's number of units, as its administrator states it.

    Returns:
        Names, each with a sentence or two.
    """
    kept = job.proposal
    if kept is None:
        yield "What it is", "A job from before proposals were kept here; the ledger has its plan."
        return
    proposal, plan = kept.proposal, kept.plan
    yield from stated(kept)
    yield "What it trains", _trains(proposal)
    yield "From what", _records(proposal)
    yield "How", _method(proposal, plan)
    yield "How long", _length(proposal, plan, declared_size)
    yield "What leaves", _leaves(proposal, plan)
    yield "Who proposed it", f"The coordinator at {kept.server}, first on {when(kept.first)}."


def cost(jobs: Jobs, job: Job) -> str:
    """Say what a job costs by itself, and what the ledger would then have allocated."""
    account, kept = jobs.account, job.proposal
    text = f"ε = {upper(job.epsilon)} by itself at δ = {small(account['delta'])}"
    begun = any(row["job"] == job.name for row in account["plans"])
    life = in_words(life_in(account, job.plan), asks=not begun)
    if job.epsilon_alone is not None:
        text += f", and {upper(job.epsilon_alone)} {ALONE}"
    if kept is None or job.paid:
        return f"{text}. {life}"
    text += f". Of ε = {account['budget']:g} for life, {upper(kept.allocated)} would be allocated"
    if kept.allocated_alone is not None:
        text += f", and alone {upper(kept.allocated_alone)} of {account['budget_alone']:g}"
    return f"{text}. {life}"


def meaning(jobs: Jobs, job: Job) -> str:
    """Say what a job's cost means for one unit."""
    account, own = jobs.account, job.epsilon
    whole, alone = account["budget"], account["budget_alone"]
    if alone is not None and job.epsilon_alone is not None:
        own, whole = job.epsilon_alone, alone
    figures = {"by this job alone": own, "by all that the budget lets through": whole}
    return for_one(account["unit"], account["delta"], figures)


def _trains(proposal: Proposal) -> str:
    model = proposal.model
    task = "to continue text"
    if model.task == "classification":
        task = f"to give a text one of the labels {', '.join(model.labels)}"
    kept = ""
    if model.quantize is not None:
        kept = f", with its weights rounded to {model.quantize.removesuffix('bit')} bits"
    began = ""
    if proposal.begin_digest is not None:
        began = f" It begins at the adapter that this site allows, which is {model.begin_as}."
    return (
        f"An adapter (LoRA) of rank {proposal.lora.r} beside the base model that this site allows,"
        f" which stays as it is{kept}. It learns {task}, of at most {model.max_length:,} tokens at"
        f" once.{began}"
    )


def _records(proposal: Proposal) -> str:
    privacy, names = proposal.privacy, ", ".join(proposal.fields)
    if privacy.unit == "record":
        return f"The records of this site ({names}). Each record by itself is protected."
    return (
        f"The records of this site ({names}), at most {privacy.max_records_per_unit} of one"
        f" {privacy.unit}. All records of one {privacy.unit} together are protected."
    )


def _method(proposal: Proposal, plan: Plan) -> str:
    known = METHODS.get(proposal.method)
    if known and proposal.privacy.normalise is not None:
        known = known.replace("each clipped", "each adapter's part of a fixed length")
    how = f"Method {proposal.method}" + (f": {known}." if known else ".")
    noise = (
        f" Nothing counts for more than C = {plan.clip_norm:g}, and noise of"
        f" {plan.noise_multiplier:.4g} × C is added"
    )
    if plan.is_shared:
        return (
            f"{how}{noise} by all sites of a secure sum together, of which {plan.max_colluding} may"
            " work with the server; this site alone adds at least"
            f" {plan.alone.noise_multiplier:.4g} × C."
        )
    return f"{how}{noise} by this site."


def _length(proposal: Proposal, plan: Plan, declared_size: int) -> str:
    each = proposal.round_steps
    rounds = f"{_count(proposal.rounds, 'round')} of {_count(each, 'private step')} each"
    looks = proposal.evaluation
    further = ""
    if looks is not None:
        further = f", and {_count(looks.looks, 'look')} of {looks.slots} at held-out records"
    elif proposal.shared is not None and proposal.shared.spare_slots:
        further = f", and {_count(proposal.shared.spare_slots, 'spare step')}"
    drawn = plan.sample_rate * declared_size
    return (
        f"{rounds}{further}: {_count(plan.steps, 'step')} in all. A step draws each unit with a"
        f" chance of {100 * plan.sample_rate:.3g}%, about {drawn:,.0f} of {declared_size:,}; who"
        " was drawn stays secret."
    )


def _leaves(proposal: Proposal, plan: Plan) -> str:
    rounds = _count(proposal.rounds, "time")
    if plan.is_shared:
        what = (
            f"{rounds}, this site's masked share of a sum. The server learns the sum of all sites"
        )
    elif proposal.local is not None:
        what = f"{rounds}, the move that the noisy steps of a round make together"
    else:
        what = f"{rounds}, one noisy sum"
    looks = proposal.evaluation
    seen = "" if looks is None else f" {_count(looks.looks, 'time')}, two noisy scores of a look."
    return (
        f"{what}.{seen} Public figures of the ledger leave with it. No record, no loss and no count"
        " of records leaves."
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
