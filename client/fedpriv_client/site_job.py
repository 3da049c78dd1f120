"""A job for which a site made an offer, and the checks before that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fedpriv.data.population import Population
from fedpriv.data.spec import DataSpec
from fedpriv.errors import ProtocolError, SlotError
from fedpriv.methods.registry import find_method
from fedpriv.models.base import Base
from fedpriv.models.vector import TrainableVector, Vector
from fedpriv.plugins import load_part
from fedpriv.privacy.ledger.plan import Plan
from fedpriv.privacy.ledger.terms import Terms
from fedpriv.privacy.mechanism.execution import PlanExecution
from fedpriv.privacy.mechanism.noise_share import check_added_delta
from fedpriv.private_training.method import SiteHalf, SiteMethod
from fedpriv.private_training.pool import Inspect
from fedpriv.private_training.worker import ModelRecipe, Worker
from fedpriv.protocol import Proposal, StepRequest
from fedpriv.synthetic.records import SetChange, SyntheticSet
from fedpriv_client.limits import Limits
from fedpriv_client.site_settings import SiteSettings


@dataclass
class SiteJob:
    """Hold a job for which a site made an offer.

    Attributes:
        check: checks each model that is loaded for the job, however late.
        half: makes the site's half of the job's method, anew for every request: what it computes
            for one is gone before the next.
        held_out: the units that nobody trains on, in a job that looks at them.
        synthetic: the public records that the site holds for the job.
        seconds_a_record: the seconds of the longest record, tried on random texts, by the class
            that computes it.
    """

    proposal: Proposal
    plan: Plan
    recipe: ModelRecipe
    check: Inspect
    half: SiteHalf
    population: Population
    spec: DataSpec
    tokenizer: Any
    held_out: Population | None = None
    synthetic: SyntheticSet | None = None
    seconds_a_record: dict[str, float] = field(default_factory=dict)

    def take_set(self, request: StepRequest, change: SetChange | None) -> None:
        """Update the public records to those of a request, which names them by their digest.

        Raises:
            SyntheticSetError: the request changes a set that is not here.
            ProtocolError: a set is missing or not expected, or has another size than the job's.
        """
        expected = self.proposal.public_records if request.centres is None else 0
        announced = None if change is None else change.digest
        if (change is None) != (expected == 0) or announced != request.set_digest:
            raise ProtocolError("The request and the job disagree about a synthetic set.")
        if change is None:
            return
        if change.size != expected:
            raise ProtocolError(f"Expected {expected} synthetic records, got {change.size}.")
        made = change.apply(self.synthetic)
        if made is not self.synthetic:
            records = made.examples(self.spec, self.tokenizer)
            self.half, self.synthetic = replace(self.half, records=records), made

    def slots_of(self, request: StepRequest) -> range:
        """Return the slots of a request: of a round or a look. All looks come after the rounds.

        Raises:
            ProtocolError: the job has no looks.
            SlotError: neither a round nor a look of the job begins there.
        """
        job, looks = self.proposal, self.proposal.evaluation
        first, end, each, name = 0, job.training_steps, job.round_steps, "round"
        if request.centres is not None:
            if looks is None:
                raise ProtocolError(f"Job {request.job_id!r} looks at no held-out records.")
            first, end, each, name = end, job.steps, looks.slots, "look"
        slots = range(request.slot, request.slot + each)
        if slots.start < first or slots.stop > end or (slots.start - first) % each:
            raise SlotError(
                f"Job {request.job_id!r} has {end - first} slots, {each} in a {name};"
                f" none begins at {request.slot}."
            )
        return slots

    def method_of(self, request: StepRequest, worker: Worker) -> Any:
        """Return what computes a request's sums: the method with its team, or a look by itself."""
        ranges = self.proposal.evaluation
        if request.centres is not None and ranges is not None:
            return load_part("allow.evaluation").Distances(ranges, request.centres)
        return self.half.at(worker)

    def check_local(self, method: SiteMethod, vector: Vector, size: int) -> None:
        """Check that local steps can move by the releases of steps, before they are paid for.

        Args:
            size: the number of values of a release.

        Raises:
            ProtocolError: they can't.
        """
        if self.proposal.local is not None and method.start(vector).shape != (size,):
            raise ProtocolError(f"local: {self.proposal.method} has one step a round.")


def recipe_of(proposal: Proposal, settings: SiteSettings) -> ModelRecipe:
    """Return a proposal's model, from the site's own source: a server names no file or hub here."""
    model = proposal.model
    if settings.model is not None:
        begin = None if model.begin is None else settings.begin
        model = model.model_copy(update={"name": settings.model, "begin": begin})
    return ModelRecipe(model, proposal.lora, proposal.seed, settings.compute)


def half_of(proposal: Proposal) -> SiteHalf:
    """Return the maker of the site's half of a proposal's method.

    Raises:
        ConfigError: no such method is installed here.
        ProtocolError: the method uses another number of public records than the proposal says.
    """
    name, sent = proposal.method, proposal.public_records
    half = SiteHalf(find_method(name), proposal)
    if (used := half.make().public_records) != sent:
        raise ProtocolError(f"public_records: {sent} would be sent, and {name} uses {used}.")
    return half


def check_loaded(base: Base, vector: TrainableVector, proposal: Proposal, limits: Limits) -> None:
    """Check a model that was loaded for a proposal, before a gradient of it is computed.

    Raises:
        ProtocolError: it is not the proposed model, or trains what is not allowed.
    """
    named, begun = proposal.base_digest, proposal.begin_digest
    if base.digest != proposal.base_digest:
        raise ProtocolError(f"model.name: this site's base is {base.digest}, the server's {named}.")
    if base.begin_digest != proposal.begin_digest:
        raise ProtocolError(f"model.begin: this site has {base.begin_digest}, not {begun}.")
    limits.check_trained(vector)
    if vector.digest != proposal.vector_digest:
        raise ProtocolError("lora: this site would train other shapes than the server.")


def check_model(
    worker: Worker, proposal: Proposal, plan: Plan, limits: Limits, terms: Terms
) -> None:
    """Check the model that was loaded for a proposal, before anything is paid for it.

    What can fail because devices are missing is tried here, too.

    Raises:
        ProtocolError: it is not the proposed model, or trains what is not allowed.
        AccountingError: the plan's noise can't be drawn, see `PlanExecution`; or dividing it among
            sites would cost more of δ, under one of the claims, than is negligible.
        ConfigError: there are fewer devices than the site's file says.
    """
    vector, size = worker.vector, worker.vector.size
    check_loaded(worker.base, vector, proposal, limits)
    half = half_of(proposal)
    limits.check_held(proposal.public_records, half.make().held_bytes(vector.size))
    PlanExecution(plan, size)
    if plan.is_shared:
        check_added_delta(plan, size, terms.budget, terms.plan_delta)
        if terms.budget_alone is not None:
            check_added_delta(plan, size, terms.budget_alone, terms.plan_delta, alone=True)
    half.at(worker)
