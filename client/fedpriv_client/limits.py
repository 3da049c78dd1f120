"""What a site allows. The site decides, whatever a server asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpriv.errors import FedprivError, Limit, LimitError, StatementError
from fedpriv.models.config import HEADS
from fedpriv.models.digest import quantised_digest
from fedpriv.privacy.accounting.accountant import epsilon_upper
from fedpriv.privacy.accounting.calibration import calibrate_noise
from fedpriv.privacy.ledger.claims import ALONE
from fedpriv.privacy.ledger.ledger import Plan, Terms
from fedpriv.privacy.usual import MAX_DRAWN, MAX_PUBLIC_RECORDS
from fedpriv.protocol import Proposal, SharedNoise
from fedpriv.secure_sum.roster import Roster

if TYPE_CHECKING:
    from fedpriv.models.vector import TrainableVector

_WHOLE = ".modules_to_save."  # what peft calls a layer that is trained whole


@dataclass(frozen=True)
class Limits:
    """Hold what the site's administrator allows.

    The defaults here are what a simulation allows. A site's file sets all of it, with its own
    defaults (`fedpriv.config.site_file.AllowSection`).

    Attributes:
        per_job: the most ε that one job may cost by itself; a ledger's rule may charge more for it.
        per_job_alone: the same if every other site of a secure sum works with the server; None
            allows all of the ledger's second budget.
        methods: the names of methods that a server may ask for.
        base_digest: digest of the only base that may be used: weights, tokenizer, configuration. It
            is that of the base as stored, also for a job that quantises it; or that of the base in
            8 or 4 bits alone.
        begin_digest: digest of the only adapter that a job may begin at; None for none.
        labels: the records' labels, in the model's order; empty for text.
        min_noise, max_rate, max_steps: bounds on a plan, whatever its ε.
        min_noise_alone: the least noise that this site itself adds to a step of a secure sum; None
            for its share of `min_noise`.
        max_length: the most tokens of an example.
        numerics: the modes that a server may ask for; with ``strict`` alone, it is required.
        ticks: whether the time when a reply leaves is a function of public settings
            (`fedpriv_client.ticks`).
        max_r: the highest rank of an adapter.
        max_trainable: the most trained parameters, adapter and new head together.
        max_synthetic: the most public records that a method may have the site hold.
        max_basis: the most bytes of what the site has to hold of them.
        targets: names of the layers that may get an adapter, or be trained whole; empty allows any.
        statement: whether a job has to say what it is for, and be signed.
        evaluation: whether a job may look at held-out records.
        held_out: the declared number of units that are held out; None without one.
        roster: the sites with which this one may form a secure sum; None if it may with nobody.
        max_colluding_at_least: how many of them, at least, a job has to count as dishonest.
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
    roster: Roster | None = None
    max_colluding_at_least: int = 0

    def plan(self, proposal: Proposal, terms: Terms) -> Plan:
        """Return the plan that this site would commit to for a proposal.

        Raises:
            LimitError: the proposal asks for something that the site does not allow.
        """
        for refusal in self.refusals(proposal, terms):
            raise refusal
        plan = self.calibrated(proposal, terms)
        if plan.is_shared:
            self.check_cost(plan, terms)
        return plan

    def refusals(self, proposal: Proposal, terms: Terms) -> Iterator[FedprivError]:
        """Yield all that this site does not allow in a proposal, before it loads a model."""
        yield from _foreign("methods", "method", proposal.method, self.methods)
        if self.statement and proposal.statement is None:
            yield StatementError("statement: is missing; this site needs one (allow.statement).")
        yield from self.model_refusals(proposal)
        privacy = proposal.privacy
        yield from _foreign("numerics", "privacy.numerics", privacy.numerics, self.numerics)
        if (privacy.unit, privacy.max_records_per_unit) != (terms.unit, terms.max_records_per_unit):
            asked = f"{privacy.unit!r} with {privacy.max_records_per_unit} records"
            text = f"ledger, {terms.unit!r} with {terms.max_records_per_unit}."
            yield LimitError(f"privacy.unit: {asked} is not the unit of this site's {text}", "unit")
        yield from _more("max-rate", "A rate of", privacy.sample_rate, self.max_rate)
        if proposal.steps > self.max_steps:
            text = f"{proposal.steps} steps are more than this site allows, {self.max_steps}"
            yield LimitError(f"{text} (allow.max_steps).", "max-steps")
        size = proposal.public_records
        yield from _more("max-synthetic", "synthetic.size:", size, self.max_synthetic)
        if proposal.evaluation is not None and not self.evaluation:
            text = "evaluation.sites: is not allowed here (allow.evaluation)."
            yield LimitError(text, "evaluation")
        elif proposal.evaluation is not None and self.held_out is None:
            text = "this site declares no number of held-out records (data.held_out_size)."
            yield LimitError(f"evaluation.sites: {text}", "held-out")
        elif proposal.evaluation is not None and privacy.numerics == "default":
            drawn = privacy.sample_rate * (self.held_out or 0)
            if drawn > MAX_DRAWN:  # as for training units, see `History.check_drawn`
                text = f"would draw {drawn:,.0f} units, and {MAX_DRAWN:,} are the most that default"
                fix = 'numerics can add up. Use privacy.numerics = "strict", or a lower rate.'
                yield LimitError(f"evaluation.sites: a look {text} {fix}", "held-out")
        if proposal.shared is not None:
            yield from self._sharing_refusals(proposal.shared, terms)

    def _sharing_refusals(self, shared: SharedNoise, terms: Terms) -> Iterator[LimitError]:
        """Yield all that this site does not allow in a secure sum."""
        if self.roster is None or self.roster.digest != shared.roster:
            pinned = "none" if self.roster is None else self.roster.digest
            text = f"the sum is of the sites of {shared.roster}, and this site's roster is {pinned}"
            yield LimitError(f"privacy.trust: {text} (secure_sum.digest).", "roster")
        elif len(self.roster) != shared.sites:
            text = f"counts {shared.sites} sites, and {len(self.roster)} are in the roster."
            yield LimitError(f"privacy.trust: the job {text}", "roster")
        if shared.max_colluding < self.max_colluding_at_least:
            text = f"{shared.max_colluding} is less than this site insists on,"
            text += f" {self.max_colluding_at_least} (allow.max_colluding_at_least)."
            yield LimitError(f"privacy.max_colluding: {text}", "max-colluding")
        if terms.budget_alone is None:
            yield LimitError(
                "The job has a secure sum, and this site's ledger has no budget for the claim"
                " without trust in the others (budget.epsilon_alone). It can only be stated when a"
                " ledger is made.",
                "epsilon-alone",
            )

    def model_refusals(self, proposal: Proposal) -> Iterator[LimitError]:
        """Yield all that this site does not allow in a proposal's model and its trained part."""
        if self.labels != proposal.model.labels:
            text = f"{proposal.model.labels} are not this site's labels {self.labels}."
            yield LimitError(f"model.labels: {text}", "labels")
        length = proposal.model.max_length
        yield from _more("max-length", "model.max_length:", length, self.max_length)
        quantised = quantised_digest(self.base_digest, proposal.model.quantize)
        if proposal.base_digest not in (self.base_digest, quantised):
            text = f"is not the base model this site allows, {self.base_digest}."
            yield LimitError(f"model: {proposal.base_digest} {text}", "model-digest")
        if proposal.begin_digest not in (None, self.begin_digest):
            text = f"model.begin: {proposal.begin_digest} is not what allow.begin_digest says."
            yield LimitError(text, "begin-digest")
        yield from _more("max-r", "lora.r:", proposal.lora.r, self.max_r)
        wanted = proposal.lora.target_modules
        named = () if isinstance(wanted, str) else wanted
        yield from self._foreign_targets((*named, *proposal.lora.modules_to_save))

    def calibrated(self, proposal: Proposal, terms: Terms) -> Plan:
        """Turn a proposal into a plan, whether or not the site allows it.

        The noise is calibrated to the smaller of the proposed ε and the site's cap for a job, with
        the proposed rate and steps and the site's own δ. In a secure sum the proposed noise is
        used, which is the same for all sites, and `check_cost` checks whether it is enough.
        """
        privacy, shared = proposal.privacy, proposal.shared
        epsilon, delta = min(privacy.epsilon, self.per_job), terms.plan_delta
        if shared is not None:
            noise = shared.noise_multiplier
        else:
            noise = calibrate_noise(epsilon, delta, privacy.sample_rate, proposal.steps)
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
            max_colluding=None if shared is None else shared.max_colluding,
            shares=1 if shared is None else shared.shares,
        )

    def check_cost(self, plan: Plan, terms: Terms) -> None:
        """Check the caps for a plan whose noise somebody else chose, under both claims.

        Raises:
            LimitError: it costs more than one job may, or has less noise than the site allows.
        """
        alone: tuple[Limit, Limit] = ("min-noise-alone", "per-job-alone")
        usual: tuple[Limit, Limit] = ("min-noise", "per-job")
        for (noisy, dear), claim, charged, least, most, words in (
            (usual, "", plan, self.min_noise, self.per_job, ""),
            (alone, "_alone", plan.alone, self.min_noise_alone, self.per_job_alone, f" {ALONE}"),
        ):
            noise = charged.noise_multiplier
            if least is not None and noise < least:
                text = f"Noise of {noise:.4g}{words} is less than this site allows, {least:g}"
                raise LimitError(f"{text} (allow.min_noise{claim}).", noisy)
            if most is None:
                continue
            epsilon = epsilon_upper([charged.event()], terms.plan_delta)
            if epsilon > most:
                raise LimitError(
                    f"The job costs ε = {epsilon:.4g} at δ = {terms.plan_delta:g}{words}, more than"
                    f" one job may cost here, {most:g} (budget.per_job{claim}). With a secure sum"
                    " all sites have the same noise.",
                    dear,
                )

    def check_trained(self, vector: TrainableVector) -> None:
        """Check how many parameters a loaded model would train, and in which layers.

        Raises:
            LimitError: there are more parameters, or other layers, than the site allows.
        """
        if vector.size > self.max_trainable:
            text = f"lora: would train {vector.size:,} parameters, more than this site allows,"
            raise LimitError(
                f"{text} {self.max_trainable:,} (allow.max_trainable).", "max-trainable"
            )
        layers = {name.partition(".lora_")[0] for name in vector.names if ".lora_" in name}
        whole = {name.partition(_WHOLE)[0] for name in vector.names if _WHOLE in name}
        heads = {name for name in whole if name.endswith(HEADS)}  # a classifier's, always trained
        for refusal in self._foreign_targets(sorted(layers | (whole - heads))):
            raise refusal

    def check_held(self, records: int, needed: int) -> None:
        """Check how much memory a method would need for its public records.

        Args:
            needed: bytes.

        Raises:
            LimitError: it is more than the site allows.
        """
        if needed > self.max_basis:
            text = f"synthetic.size: the gradients of {records} records are {needed:,} bytes,"
            raise LimitError(f"{text} more than this site allows, {self.max_basis:,}.", "max-basis")

    def _foreign_targets(self, layers: Iterable[str]) -> Iterator[LimitError]:
        """Refuse layers that may get no adapter here. The end of a path (``h.0.attn``) counts."""
        names = dict.fromkeys(layer.rpartition(".")[2] for layer in layers)
        foreign = [name for name in names if self.targets and name not in self.targets]
        if foreign:
            text = f"may get no adapter here, only {', '.join(self.targets)}."
            yield LimitError(f"lora.target_modules: {', '.join(foreign)} {text}", "targets")


def _more(limit: Limit, what: str, asked: float, most: float) -> Iterator[LimitError]:
    if asked > most:
        key = f"allow.{limit.replace('-', '_')}"
        yield LimitError(f"{what} {asked} is more than this site allows, {most} ({key}).", limit)


def _foreign(limit: Limit, key: str, asked: str, allowed: Sequence[str]) -> Iterator[LimitError]:
    if asked not in allowed:
        text = f"{asked!r} is not allowed here, only {', '.join(allowed)}."
        yield LimitError(f"{key}: {text}", limit)
