"""The site decides: what it allows, whatever a server asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedpriv.config.groups import Decision
from fedpriv.errors import BudgetError, FedprivError, ProtocolError, StatementError
from fedpriv.models.config import HEADS
from fedpriv.models.digest import quantised_digest
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.accounting.filter import calibrate_filtered
from fedpriv.privacy.ledger.claims import ALONE
from fedpriv.privacy.ledger.ledger import AS_PLANNED, Plan, SlotChoice, Terms
from fedpriv.privacy.ledger.rules import RdpRule
from fedpriv.privacy.usual import MAX_PUBLIC_RECORDS
from fedpriv.protocol import Proposal, SharedNoise
from fedpriv.secure_sum.roster import Roster

if TYPE_CHECKING:
    from fedpriv.models.vector import TrainableVector

_WHOLE = ".modules_to_save."  # what peft calls a layer that is trained whole


@dataclass(frozen=True)
class Limits:
    """What the site's administrator allows.

    What is left out here is what a simulation allows; a site's file says all of it, with its own
    defaults (`fedpriv.config.site_file.AllowSection`).

    Attributes:
        per_job: ε that one job may cost by itself; a ledger's rule may charge more for it.
        per_job_alone: the same if every other site of a secure sum works with the server; None:
            whatever the ledger's second budget has.
        methods: names a server may ask for.
        base_digest: of the only base that may be used: weights, tokenizer, configuration. Of a
            base as it is stored, also for a job that quantises it; or of it in 8 or 4 bits alone.
        begin_digest: of the only adapter that a job may begin at; None for none.
        labels: of the records, in the model's order; none for text.
        min_noise, max_rate, max_steps: bounds on a plan, whatever its ε.
        min_noise_alone: the least of a step's noise that this site adds itself in a secure sum;
            None: its share of `min_noise`.
        max_length: tokens of the longest example.
        numerics: modes a server may ask for; leave ``strict`` alone to insist on it.
        ticks: when a reply leaves is a function of public settings (`fedpriv_client.ticks`).
        max_r: rank of an adapter.
        max_trainable: parameters that are trained, adapter and new head together.
        max_synthetic: public records that a method may have the site hold.
        max_basis: bytes of what it has to hold of them.
        targets: names of the layers that may get an adapter, or be trained whole; none for any.
        statement: whether a job has to say what it is for, and be signed.
        evaluation: whether a job may look at held-out records.
        held_out: the declared number of units that are held out; None without one.
        controller: what a controller may move: nothing (``none``), how noise is divided among
            groups (``fixed-noise``), or noise and rate of steps besides (``adaptive``).
        roster: of those whom the site may be added up with; None if it adds up with nobody.
        max_colluding_at_least: of these, as many at least have to be counted as dishonest.
    """

    per_job: float
    base_digest: str
    begin_digest: str | None = None
    labels: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("dp-lora",)
    per_job_alone: float | None = None
    min_noise: float = 0.3
    min_noise_alone: float | None = None
    max_rate: float = 1.0
    max_steps: int = 100_000
    max_length: int = 8192
    numerics: tuple[str, ...] = ("default", "strict")
    ticks: bool = False
    max_r: int = 1024
    max_trainable: int = 100_000_000
    max_synthetic: int = MAX_PUBLIC_RECORDS
    max_basis: int = 16 << 30
    targets: tuple[str, ...] = ()
    statement: bool = False
    evaluation: bool = False
    held_out: int | None = None
    controller: Literal["none", "fixed-noise", "adaptive"] = "adaptive"
    roster: Roster | None = None
    max_colluding_at_least: int = 0

    def plan(self, proposal: Proposal, terms: Terms) -> Plan:
        """The plan this site would commit to for a proposal.

        Raises:
            ProtocolError: something the site does not allow.
            BudgetError: more steps or a higher rate than allowed.
        """
        for refusal in self.refusals(proposal, terms):
            raise refusal
        plan = self.calibrated(proposal, terms)
        if plan.is_shared:
            self.check_cost(plan, terms)
        return plan

    def refusals(self, proposal: Proposal, terms: Terms) -> Iterator[FedprivError]:
        """All that this site does not allow of a proposal, before a model is loaded for it."""
        if proposal.method not in self.methods:
            yield ProtocolError(
                f"method: {proposal.method!r} is not allowed here, only {', '.join(self.methods)}."
            )
        if self.statement and proposal.statement is None:
            yield StatementError("statement: is missing, and needed here (allow.statement).")
        yield from self.model_refusals(proposal)
        privacy = proposal.privacy
        if privacy.numerics not in self.numerics:
            yield ProtocolError(
                f"privacy.numerics: {privacy.numerics!r} is not allowed here, only"
                f" {', '.join(self.numerics)}."
            )
        if (privacy.unit, privacy.max_records_per_unit) != (terms.unit, terms.max_records_per_unit):
            yield ProtocolError(
                f"privacy.unit: {privacy.unit!r} with {privacy.max_records_per_unit} records is not"
                f" the unit of this site's ledger, {terms.unit!r} with"
                f" {terms.max_records_per_unit}."
            )
        if privacy.sample_rate > self.max_rate or proposal.steps > self.max_steps:
            yield BudgetError(
                f"A rate of {privacy.sample_rate:g} for {proposal.steps} steps is more than this"
                f" site allows, {self.max_rate:g} and {self.max_steps}."
            )
        if proposal.public_records > self.max_synthetic:
            yield ProtocolError(
                f"synthetic.size: {proposal.public_records} is more than this site allows,"
                f" {self.max_synthetic}."
            )
        if proposal.evaluation is not None and not self.evaluation:
            yield ProtocolError("evaluation.sites: is not allowed here (allow.evaluation).")
        elif proposal.evaluation is not None and self.held_out is None:
            yield ProtocolError(
                "evaluation.sites: this site holds out no records of a declared number"
                " (data.held_out, data.held_out_size)."
            )
        if proposal.groups is not None:
            wanted = "adaptive" if proposal.groups.adaptive else "fixed-noise"
            if self.controller not in (wanted, "adaptive"):
                yield ProtocolError(
                    f"controller: {wanted!r} is not allowed here (allow.controller ="
                    f" {self.controller!r})."
                )
        if proposal.shared is not None:
            yield from self._sharing_refusals(proposal.shared, terms)

    def _sharing_refusals(self, shared: SharedNoise, terms: Terms) -> Iterator[FedprivError]:
        """All that this site does not allow of a secure sum."""
        if self.roster is None or self.roster.digest != shared.roster:
            pinned = "none" if self.roster is None else self.roster.digest
            yield ProtocolError(
                f"privacy.trust: the sum is of the sites of {shared.roster}, and this site's roster"
                f" is {pinned} (secure_sum.digest)."
            )
        elif len(self.roster) != shared.sites:
            yield ProtocolError(
                f"privacy.trust: the job counts {shared.sites} sites, and"
                f" {len(self.roster)} are in the roster."
            )
        if shared.max_colluding < self.max_colluding_at_least:
            yield ProtocolError(
                f"privacy.max_colluding: {shared.max_colluding} is less than this site insists on,"
                f" {self.max_colluding_at_least} (allow.max_colluding_at_least)."
            )
        if terms.budget_alone is None:
            yield BudgetError(
                "The job has a secure sum, and this site's ledger has no budget for what holds"
                " without trust in the others (budget.epsilon_alone). It is stated when a ledger"
                " is made."
            )

    def model_refusals(self, proposal: Proposal) -> Iterator[FedprivError]:
        """All that this site does not allow of a proposal's model, and of what is trained in it."""
        if self.labels != proposal.model.labels:
            yield ProtocolError(
                f"model.labels: {proposal.model.labels} are not this site's labels {self.labels}."
            )
        if proposal.model.max_length > self.max_length:
            yield ProtocolError(
                f"model.max_length: {proposal.model.max_length} is more than this site allows,"
                f" {self.max_length}."
            )
        quantised = quantised_digest(self.base_digest, proposal.model.quantize)
        if proposal.base_digest not in (self.base_digest, quantised):
            yield ProtocolError(
                f"model: {proposal.base_digest} is not the base model this site allows,"
                f" {self.base_digest}."
            )
        if proposal.begin_digest not in (None, self.begin_digest):
            yield ProtocolError(
                f"model.begin: {proposal.begin_digest} is not what allow.begin_digest says."
            )
        if proposal.lora.r > self.max_r:
            yield ProtocolError(
                f"lora.r: {proposal.lora.r} is more than this site allows, {self.max_r}."
            )
        wanted = proposal.lora.target_modules
        named = () if isinstance(wanted, str) else wanted
        yield from self._foreign_targets((*named, *proposal.lora.modules_to_save))

    def calibrated(self, proposal: Proposal, terms: Terms) -> Plan:
        """A proposal as a plan, whether or not it is allowed.

        The noise is calibrated to the smaller of the proposed ε and the site's cap for a job,
        at the proposed rate and steps and the site's own δ. Of a secure sum it is the same for all
        sites, as proposed, and `check_cost` says whether that is enough. Where noise is adaptive
        it is that of the filter's budget, at the ledger's order if it has one.
        """
        privacy, shared, order = proposal.privacy, proposal.shared, None
        epsilon, delta = min(privacy.epsilon, self.per_job), terms.plan_delta
        if shared is not None:
            noise = shared.noise_multiplier
        elif proposal.groups is not None and proposal.groups.adaptive:
            fixed = terms.rule.order if isinstance(terms.rule, RdpRule) else None
            noise, order = calibrate_filtered(
                epsilon, delta, privacy.sample_rate, proposal.steps, fixed
            )
        else:
            noise = calibrate_noise(epsilon, delta, privacy.sample_rate, proposal.steps)
        if shared is None:
            noise = max(noise, self.min_noise)
        return Plan(
            job=proposal.job_id,
            method=proposal.method,
            sample_rate=privacy.sample_rate,
            noise_multiplier=noise,
            clip_norm=privacy.clip_norm,
            steps=proposal.steps,
            proposal=proposal.digest(),
            numerics=privacy.numerics,
            ticks=self.ticks,
            order=order,
            max_colluding=None if shared is None else shared.max_colluding,
            shares=1 if shared is None else shared.shares,
        )

    def choice(self, plan: Plan, decision: Decision | None) -> SlotChoice:
        """What a controller's decision means for a slot of a plan: noise and rate.

        Raises:
            BudgetError: less noise than this site allows.
            AccountingError: the decision asks for a share that buys nothing.
        """
        if plan.filter is None or decision is None or decision.share is None:
            return AS_PLANNED
        choice = SlotChoice(plan.filter.noise_of(decision.share, decision.rate), decision.rate)
        noise = choice.noise * plan.noise_multiplier
        if noise < self.min_noise:
            raise BudgetError(
                f"Noise of {noise:g} is less than this site allows, {self.min_noise:g}"
                " (allow.min_noise)."
            )
        return choice

    def check_cost(self, plan: Plan, terms: Terms) -> None:
        """Check a plan whose noise somebody else chose against the caps, under both claims.

        Raises:
            BudgetError: it costs more, or has less noise than any step may.
        """
        for claim, charged, least, most, words in (
            ("", plan, self.min_noise, self.per_job, ""),
            ("_alone", plan.alone, self.min_noise_alone, self.per_job_alone, f" {ALONE}"),
        ):
            noise = charged.noise_multiplier
            if least is not None and noise < least:
                raise BudgetError(
                    f"Noise of {noise:.4g}{words} is less than this site allows, {least:g}"
                    f" (allow.min_noise{claim})."
                )
            if most is None:
                continue
            epsilon = epsilon_upper([charged.event()], terms.plan_delta)
            if epsilon > most:
                raise BudgetError(
                    f"The job costs ε = {epsilon:.4g} at δ = {terms.plan_delta:g}{words}, more than"
                    f" one job may here, {most:g} (budget.per_job{claim}). With a secure sum all"
                    " sites have the same noise."
                )

    def check_trained(self, vector: TrainableVector) -> None:
        """Check what a loaded model would train: how much, and in which layers.

        Raises:
            ProtocolError: more parameters, or other layers, than the site allows.
        """
        if vector.size > self.max_trainable:
            raise ProtocolError(
                f"lora: would train {vector.size:,} parameters, more than this site allows,"
                f" {self.max_trainable:,}."
            )
        layers = {name.partition(".lora_")[0] for name in vector.names if ".lora_" in name}
        whole = {name.partition(_WHOLE)[0] for name in vector.names if _WHOLE in name}
        heads = {name for name in whole if name.endswith(HEADS)}  # of a classifier, always trained
        for refusal in self._foreign_targets(sorted(layers | (whole - heads))):
            raise refusal

    def check_held(self, records: int, needed: int) -> None:
        """Check what a method would hold of its public records.

        Args:
            needed: bytes.

        Raises:
            ProtocolError: more than the site allows.
        """
        if needed > self.max_basis:
            raise ProtocolError(
                f"synthetic.size: the gradients of {records} records are {needed:,} bytes,"
                f" more than this site allows, {self.max_basis:,}."
            )

    def _foreign_targets(self, layers: Iterable[str]) -> Iterator[FedprivError]:
        """Layers that may get no adapter here. A path such as ``h.0.attn`` is known by its end."""
        names = dict.fromkeys(layer.rpartition(".")[2] for layer in layers)
        foreign = [name for name in names if self.targets and name not in self.targets]
        if foreign:
            yield ProtocolError(
                f"lora.target_modules: {', '.join(foreign)} may get no adapter here, only"
                f" {', '.join(self.targets)}."
            )
