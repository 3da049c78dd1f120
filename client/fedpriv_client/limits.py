"""The site decides: what it allows, whatever a server asks."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.errors import BudgetError, ProtocolError
from fedpriv.privacy.calibration import calibrate_noise
from fedpriv.privacy.ledger import Plan, Terms
from fedpriv.protocol import Proposal


@dataclass(frozen=True)
class Limits:
    """What the site's administrator allows.

    Attributes:
        per_job: ε that one job may be committed to.
        methods: names a server may ask for.
        base_digest: of the only base that may be used: weights, tokenizer, configuration.
        labels: of the records, in the model's order; none for text.
        min_noise, max_rate, max_steps: bounds on a plan, whatever its ε.
        max_length: tokens of the longest example.
        numerics: modes a server may ask for; leave ``strict`` alone to insist on it.
    """

    per_job: float
    base_digest: str
    labels: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("dp-lora",)
    min_noise: float = 0.3
    max_rate: float = 1.0
    max_steps: int = 100_000
    max_length: int = 8192
    numerics: tuple[str, ...] = ("default", "strict")

    def plan(self, proposal: Proposal, terms: Terms) -> Plan:
        """The plan this site would commit to for a proposal.

        The noise is calibrated to the smaller of the proposed ε and the site's cap for a job,
        at the proposed rate and steps and the site's own δ.

        Raises:
            ProtocolError: something the site does not allow.
            BudgetError: more steps, a higher rate or less noise than allowed.
        """
        if proposal.method not in self.methods:
            raise ProtocolError(
                f"method: {proposal.method!r} is not allowed here, only {', '.join(self.methods)}."
            )
        if self.labels != proposal.model.labels:
            raise ProtocolError(
                f"model.labels: {proposal.model.labels} are not this site's labels {self.labels}."
            )
        if proposal.model.max_length > self.max_length:
            raise ProtocolError(
                f"model.max_length: {proposal.model.max_length} is more than this site allows,"
                f" {self.max_length}."
            )
        if self.base_digest != proposal.base_digest:
            raise ProtocolError(
                f"model: {proposal.base_digest} is not the base model this site allows,"
                f" {self.base_digest}."
            )
        privacy = proposal.privacy
        if privacy.numerics not in self.numerics:
            raise ProtocolError(
                f"privacy.numerics: {privacy.numerics!r} is not allowed here, only"
                f" {', '.join(self.numerics)}."
            )
        if (privacy.unit, privacy.max_records_per_unit) != (terms.unit, terms.max_records_per_unit):
            raise ProtocolError(
                f"privacy.unit: {privacy.unit!r} with {privacy.max_records_per_unit} records is not"
                f" the unit of this site's ledger, {terms.unit!r} with"
                f" {terms.max_records_per_unit}."
            )
        if privacy.sample_rate > self.max_rate or proposal.steps > self.max_steps:
            raise BudgetError(
                f"A rate of {privacy.sample_rate:g} for {proposal.steps} steps is more than this"
                f" site allows, {self.max_rate:g} and {self.max_steps}."
            )
        epsilon = min(privacy.epsilon, self.per_job)
        noise = calibrate_noise(epsilon, terms.plan_delta, privacy.sample_rate, proposal.steps)
        return Plan(
            job=proposal.job_id,
            method=proposal.method,
            sample_rate=privacy.sample_rate,
            noise_multiplier=max(noise, self.min_noise),
            clip_norm=privacy.clip_norm,
            steps=proposal.steps,
            proposal=proposal.digest(),
            numerics=privacy.numerics,
        )
