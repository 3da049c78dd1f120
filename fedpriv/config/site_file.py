"""The site's own file: what its administrator states, and what the site allows.

Nothing in it comes from a server, and nothing that a server sends replaces any of it. Paths are
relative to the file and are made absolute when it is read.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from fedpriv.config.looks import check_delta_below, check_held_out, held_out_units
from fedpriv.config.sources import OtherSources, Source
from fedpriv.data.config import SHAPES, DataSection
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.models.config import check_distinct
from fedpriv.names import METRICS, Address, Digest, Name, Port, RecordsPerUnit, Unit
from fedpriv.privacy import usual
from fedpriv.private_training.config import ComputeSection
from fedpriv.section import Section

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.rules import Rule


class Identity(Section):
    """The site's name, state and answers."""

    name: Name = Field(
        description="The site's name, as in the federation file and the certificate."
    )
    state_dir: Path = Field(
        Path("state"),
        description="Folder of ledgers, keys, last report and cache. As confidential as the"
        " records.",
    )
    health: Address | None = Field(
        None, description="The host:port of the gRPC health service. Without it, none."
    )
    metrics_port: Port | None = Field(None, description=METRICS)
    ticks: bool = Field(
        True,
        description="Send answers made of records at times that depend on public settings only"
        " ([privacy](../explanation/privacy.md#public-ticks)). No effect if `compute.devices` >"
        " 1.",
    )
    preparation: float | None = Field(
        None,
        gt=0,
        le=86400,
        description="With `ticks`: seconds to prepare the records for a proposal. Default: 3 +"
        " 0.0022 per record, by `data.size` × `max_records_per_unit`. A slower site does not"
        " start.",
    )


class ServerLink(Section):
    """The server's address, and the keys of the connection."""

    address: Address = Field(description="The host:port that the site dials.")
    ca: Path | None = Field(
        None,
        description="Certificate of the federation's authority (ca.crt of the enrolment). Needed"
        " unless `plain` is true.",
    )
    key: Path = Field(description="The site's private key, readable by its owner only.")
    certificate: Path = Field(Path("site.crt"), description="The site's certificate.")
    enrolment: Path = Field(
        Path("enrolment.json"), description="What the coordinator signed for this site."
    )
    plain: bool = Field(False, description="HTTP without TLS, to this machine only, for trials.")


class SiteData(OtherSources, DataSection):
    """The records, and what the site states about them."""

    dataset_id: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{32}$",
        description="Random id of the ledger that pays. Without it, the only one.",
    )
    path: Path | str | None = Field(
        None,
        description="File, saved dataset folder, or owner/name at a hub. Otherwise use"
        " `[data.omop]` or `[data.fhir]`.",
    )
    unit: Unit = usual.UNIT
    max_records_per_unit: RecordsPerUnit = usual.MAX_RECORDS_PER_UNIT
    size: int = Field(
        ge=1,
        le=usual.MAX_UNITS,
        description="Declared number of units, stated by a person, never counted from the records.",
    )
    labels: tuple[str, ...] = Field(
        (), description="Names of the classes of a label column. Never read from the data."
    )

    @property
    def records(self) -> Source:
        """Return where the records are."""
        found = self.source(self.path)
        assert found is not None  # checked when the file was read
        return found


class BudgetSection(Section):
    """The lifetime privacy budget of the site's people. Only what one job may cost can change."""

    rule: usual.RuleName = Field(
        "rdp",
        description="How the plans of many jobs add up to one claim"
        " ([privacy](../explanation/privacy.md)).",
    )
    epsilon: float = Field(gt=0, description="Lifetime ε of all jobs together.")
    delta: float = Field(
        usual.DELTA, gt=0, lt=1, description="δ of the claim; below 1 / declared size."
    )
    epsilon_alone: float | None = Field(
        None,
        gt=0,
        description="Lifetime ε if every other site in a secure sum works with the server, so"
        " that only the site's own share of the noise protects. At least `epsilon`. Without it,"
        " no secure sum; a ledger can't add it later.",
    )
    per_job: float = Field(
        gt=0,
        description="Highest ε of one job by itself. In a secure sum, it holds while no more"
        " sites work with the server than the job allows for.",
    )
    per_job_alone: float | None = Field(
        None,
        gt=0,
        description="Highest ε of one job by itself if every other site in a secure sum works"
        " with the server. Without it, `epsilon_alone`.",
    )
    order: int | None = Field(
        None,
        ge=2,
        description="Rule rdp: the Rényi order at which costs add up. Without it, the order that"
        " leaves most.",
    )
    plans: int | None = Field(
        None, ge=1, description="Rule sum: number of plans that share δ equally."
    )
    witness: Path | None = Field(
        None,
        description="File on another disk that records every ledger row, to notice an older copy"
        " of the ledger.",
    )

    def new_rule(self) -> Rule:
        """Make the rule that a ledger with this budget has.

        Raises:
            ConfigError, LedgerError: see `fedpriv.privacy.ledger.rules.new_rule`.
        """
        from fedpriv.privacy.ledger.rules import OPTIONS, new_rule

        options = {key: getattr(self, key) for keys in OPTIONS.values() for key in keys}
        given = {key: value for key, value in options.items() if value is not None}
        return new_rule(self.rule, given, self.epsilon, self.delta, self.epsilon_alone)


class AllowSection(Section):
    """What a server may ask for. The site refuses more, at no cost."""

    approve: Literal["automatic", "ask"] = Field(
        "automatic",
        description="Begin a job within these limits at once (automatic), or after approval by"
        " fedpriv-client approve or serve-page (ask). Until then nothing is spent, and the server"
        " sees a paused site.",
    )
    approvers: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field(
        (),
        max_length=100,
        description="With ask: who may approve. The ledger keeps a keyed digest of each name,"
        " with a reason. Empty: anyone who can give orders here.",
    )
    approvals: Literal[1, 2] = Field(1, description="Number of `approvers` who must approve a job.")
    statement: bool = Field(
        False,
        description="Require a `[statement]` signed with the key of the server's certificate.",
    )
    methods: tuple[str, ...] = Field(
        ("dp-lora",), min_length=1, description="Methods that may run."
    )
    model: str = Field(
        "embedded",
        min_length=1,
        description="The model to load, whatever a server calls it: embedded, a folder, or a hub"
        " name.",
    )
    model_digest: Digest = Field(description="Digest of that model, from fedpriv-client digest.")
    begin: str | None = Field(
        None,
        min_length=1,
        description="LoRA adapter that a job may start from: a folder or hub name.",
    )
    begin_digest: Digest | None = Field(
        None, description="Digest of that adapter, from fedpriv-client digest."
    )
    min_noise: float = Field(
        0.3,
        gt=0,
        description="Least noise multiplier of a step; in a secure sum, of all sites together.",
    )
    min_noise_alone: float | None = Field(
        None,
        gt=0,
        description="Least noise multiplier of this site's own share in a secure sum. Default:"
        " `min_noise` / √k, where k roster sites do not count as dishonest.",
    )
    max_rate: float = Field(1.0, gt=0, le=1, description="Highest sample rate of a step.")
    max_steps: int = Field(100_000, ge=1, description="Most steps of a job.")
    max_length: int = Field(
        8192, ge=2, description="Most tokens of an example; disk space is reserved."
    )
    numerics: tuple[Literal["default", "strict"], ...] = Field(
        ("default", "strict"), min_length=1, description="Allowed values of `privacy.numerics`."
    )
    max_r: int = Field(256, ge=1, description="Highest rank of an adapter.")
    max_trainable: int = Field(
        100_000_000, ge=1, description="Most trained parameters; disk space is reserved."
    )
    max_synthetic: int = Field(
        1_000, ge=1, le=usual.MAX_PUBLIC_RECORDS, description="Most records of a synthetic set."
    )
    max_basis: float = Field(
        4.0, gt=0, le=1e6, description="Most gigabytes of memory for a synthetic set's gradients."
    )
    targets: tuple[str, ...] = Field((), description="Layers that may get an adapter. Empty: any.")
    evaluation: bool = Field(
        False,
        description="Jobs may measure their model on the held-out records, through noise and"
        " paid from the same budget.",
    )
    max_colluding_at_least: int = Field(
        1,
        ge=0,
        le=usual.MAX_MEMBERS,
        description="Least number of sites that a secure sum must assume to work with the"
        " server. A roster entry with an uncompared fingerprint counts as one.",
    )


class SecureSumSection(Section):
    """The sites with which this one adds up, so that a server learns only the sum."""

    roster: Path = Field(description="File with the names and public keys of the sites.")
    digest: Digest = Field(
        description="Digest of that roster. First, the sites' administrators compare the"
        " fingerprints with each other, not with the coordinator."
    )


class NotifySection(Section):
    """Notices that a job waits for approval. They hold public facts only."""

    urls: tuple[SecretStr, ...] = Field(
        min_length=1,
        max_length=20,
        description="[Apprise](https://appriseit.com) addresses: `mailto://…` for mail,"
        " `jsons://…` for a webhook. Needs the extra `notify`.",
    )
    page: str = Field("the site's page", description="Address of the site's page, for the notice.")


class SiteFile(Section):
    """A site file, as far as the process that serves reads it; `OwnSiteFile` is all of it."""

    site: Identity
    server: ServerLink
    data: SiteData
    budget: BudgetSection
    allow: AllowSection
    personal: Section = Section()
    compute: ComputeSection = ComputeSection()
    secure_sum: SecureSumSection | None = None
    notify: NotifySection | None = None

    @model_validator(mode="after")
    def _consistent(self) -> SiteFile:
        data, budget, allow = self.data, self.budget, self.allow
        data.check_one(data.path, "data", "path")
        if set(data.columns) not in [shape for shapes in SHAPES.values() for shape in shapes]:
            raise ValueError(
                f"data.columns: {' + '.join(sorted(data.columns))} is not what any task needs;"
                " name text, prompt + completion, messages, or text + label"
            )
        if "label" in data.columns and len(set(data.labels)) < 2:
            raise ValueError("data.labels: a label column needs at least two distinct names")
        check_distinct(data.labels, "data.labels")
        if data.labels and "label" not in data.columns:
            raise ValueError("data.labels: belong to a label column, and data.columns names none")
        if self.server.ca is None and not self.server.plain:
            raise ValueError("server.ca: is missing; it is in the enrolment, as ca.crt")
        if self.server.plain and not is_loopback(self.server.address):
            raise ValueError(
                f"server.plain: {self.server.address} is another machine, and everyone in between"
                " could read and change what is sent; leave plain out"
            )
        if self.notify is not None and allow.approve != "ask":
            belongs = "it belongs to allow.approve = 'ask'"
            raise ValueError(f"notify: nobody's yes is waited for; {belongs}")
        if allow.approvers and allow.approve != "ask":
            raise ValueError("allow.approvers: are asked only with allow.approve = 'ask'")
        if len(set(allow.approvers)) < allow.approvals > 1:
            raise ValueError(f"allow.approvers: expected {allow.approvals} names or more")
        if allow.statement and self.server.plain:
            unsigned = "nobody signs what comes by server.plain"
            raise ValueError(f"allow.statement: {unsigned}; leave it out")
        if self.compute.gpus_per_site is not None:
            raise ValueError("compute.gpus_per_site: is for simulations; see compute.devices")
        check_delta_below(data.size, "data.size", budget.delta, "budget.delta:")
        check_held_out(data.held_out, data.size, data.held_out_size, budget.delta, "data")
        known = held_out_units(data.held_out, data.size, data.held_out_size)
        if (allow.begin is None) != (allow.begin_digest is None):
            missing = "begin_digest" if allow.begin else "begin"
            raise ValueError(f"allow.{missing}: is missing; an adapter is named with its digest")
        if allow.evaluation and known is None:
            missing = "held_out" if data.held_out is None else "held_out_size"
            raise ValueError(f"data.{missing}: is missing; allow.evaluation needs it")
        if budget.per_job > budget.epsilon:
            life = f"more than there is for life, {budget.epsilon:g}"
            raise ValueError(f"budget.per_job: {budget.per_job:g} is {life}")
        self._has_a_second_budget()
        try:
            budget.new_rule()
        except ConfigError as error:
            raise ValueError(f"budget.{error.key}: {error.problem}. {error.fix}") from None
        except FedprivError as error:
            raise ValueError(f"budget.rule: {error}") from None
        return self

    def _has_a_second_budget(self) -> None:
        """Check the second budget of a secure sum. A ledger may have one without a secure sum."""
        budget, alone, one = self.budget, self.budget.epsilon_alone, self.budget.per_job_alone
        if alone is None and self.secure_sum is not None:
            raise ValueError(
                "budget.epsilon_alone: is missing; secure_sum needs the ε that all jobs may cost if"
                " every other site in the sum and the server work together"
            )
        if alone is None and one is not None:
            raise ValueError("budget.per_job_alone: is a part of budget.epsilon_alone; state it")
        if alone is None:
            return
        if one is not None and not budget.per_job <= one <= alone:
            raise ValueError(
                f"budget.per_job_alone: {one:g} is not between what one job may cost with trust in"
                f" the others, {budget.per_job:g}, and the budget alone for life, {alone:g}"
            )
        if alone < budget.epsilon:
            less = f"{alone:g} is less than budget.epsilon, {budget.epsilon:g}"
            trust = "with nobody to trust, nothing costs less"
            raise ValueError(f"budget.epsilon_alone: {less}; {trust}")


def is_loopback(address: str) -> bool:
    """Tell whether a host:port is this machine, so that what is sent there stays on it."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
