"""The site's own file: what its administrator states, and what the site allows.

Nothing in it comes from a server, and nothing that a server sends replaces any of it. Paths are
relative to the file and are made absolute when it is read.
"""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from fedpriv.config.job import (
    SHAPES,
    Address,
    ComputeSection,
    DataSection,
    Digest,
    Name,
)
from fedpriv.config.section import Section
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.privacy import usual

if TYPE_CHECKING:
    from fedpriv.privacy.ledger.rules import Rule


class Identity(Section):
    """Who the site is, and where it keeps what is its own."""

    name: Name = Field(description="as in the federation file and in the site's certificate")
    state_dir: Path = Field(Path("state"), description="private: ledgers, report, cache")
    health: Address | None = Field(None, description="host:port of the gRPC health service")


class ServerLink(Section):
    """Where the server is, and with what the two know each other."""

    address: Address = Field(description="host:port that the site dials")
    ca: Path | None = Field(None, description="certificate of the federation's own authority")
    key: Path = Field(description="the site's private key, readable by its owner only")
    certificate: Path = Field(Path("site.crt"), description="the site's certificate")
    enrolment: Path = Field(
        Path("enrolment.json"), description="what the coordinator signed for the site"
    )
    plain: bool = Field(False, description="HTTP without TLS; to this machine only")


class SiteData(DataSection):
    """The records, and what is stated of them."""

    dataset_id: str | None = Field(
        None, pattern=r"^[0-9a-f]{32}$", description="of the ledger; default: the only one"
    )
    path: Path | str = Field(description="a file, a saved dataset folder, or owner/name of a hub")
    unit: str = Field(usual.UNIT, min_length=1, description="record, or an id column")
    max_records_per_unit: int = Field(
        usual.MAX_RECORDS_PER_UNIT, ge=1, description="windows or records a unit may hold"
    )
    size: int = Field(
        ge=1, le=usual.MAX_UNITS, description="declared, in units; typed, never derived"
    )
    labels: tuple[str, ...] = Field((), description="class names; never discovered from data")


class BudgetSection(Section):
    """What the site's people have for life. All but `per_job` is fixed with the ledger."""

    rule: usual.RuleName = Field("rdp", description="how plans add up to one claim")
    epsilon: float = Field(gt=0, description="for life")
    delta: float = Field(usual.DELTA, gt=0, lt=1, description="of the claim, below 1 / size")
    per_job: float = Field(gt=0, description="the most that one job may cost, by itself")
    order: int | None = Field(None, ge=2, description="rdp: α of the filter; default: the best")
    slots: int | None = Field(None, ge=1, description="envelope: steps in all")
    sample_rate: float | None = Field(None, gt=0, le=1, description="envelope: the highest")
    noise_multiplier: float | None = Field(None, gt=0, description="envelope: the least")
    plans: int | None = Field(None, ge=1, description="sum: plans that share δ")
    witness: Path | None = Field(None, description="told of every row, on another disk")

    def new_rule(self) -> Rule:
        """The rule that a ledger with this budget has.

        Raises:
            ConfigError, LedgerError: see `fedpriv.privacy.ledger.rules.new_rule`.
        """
        from fedpriv.privacy.ledger.rules import OPTIONS, new_rule

        options = {key: getattr(self, key) for keys in OPTIONS.values() for key in keys}
        given = {key: value for key, value in options.items() if value is not None}
        return new_rule(self.rule, given, self.epsilon, self.delta)


class AllowSection(Section):
    """What a server may ask for; see `fedpriv_client.limits`."""

    methods: tuple[str, ...] = Field(("dp-lora",), min_length=1)
    model: str = Field(
        "embedded",
        min_length=1,
        description="embedded, a folder, or a hub name: what is loaded, however a server calls it",
    )
    model_digest: Digest = Field(description="of that model, as fedpriv-client digest prints it")
    min_noise: float = Field(0.3, gt=0, description="noise multiplier of a step")
    max_rate: float = Field(1.0, gt=0, le=1, description="sample rate of a step")
    max_steps: int = Field(100_000, ge=1, description="steps of a job")
    max_length: int = Field(8192, ge=2, description="tokens of an example")
    numerics: tuple[Literal["default", "strict"], ...] = Field(("default", "strict"), min_length=1)
    max_r: int = Field(256, ge=1, description="rank of an adapter")
    max_trainable: int = Field(100_000_000, ge=1, description="parameters that are trained")
    max_synthetic: int = Field(
        1_000,
        ge=1,
        le=usual.MAX_PUBLIC_RECORDS,
        description="records of a set that gradients are written in",
    )
    max_basis: float = Field(
        4.0, gt=0, le=1e6, description="gigabytes that those gradients may take"
    )
    targets: tuple[str, ...] = Field(
        (), description="names of the layers that may get an adapter; empty: any"
    )


class SiteFile(Section):
    """A whole site file."""

    site: Identity
    server: ServerLink
    data: SiteData
    budget: BudgetSection
    allow: AllowSection
    compute: ComputeSection = ComputeSection()

    @model_validator(mode="after")
    def _consistent(self) -> SiteFile:
        data, budget = self.data, self.budget
        if set(data.columns) not in [shape for shapes in SHAPES.values() for shape in shapes]:
            raise ValueError(
                f"data.columns: {' + '.join(sorted(data.columns))} is not what any task needs;"
                " name text, prompt + completion, messages, or text + label"
            )
        if "label" in data.columns and len(set(data.labels)) < 2:
            raise ValueError("data.labels: a label column needs at least two distinct names")
        if data.labels and "label" not in data.columns:
            raise ValueError("data.labels: belong to a label column, and data.columns names none")
        if self.server.ca is None and not self.server.plain:
            raise ValueError("server.ca: is missing; it is in the enrolment, as ca.crt")
        if self.server.plain and not is_loopback(self.server.address):
            raise ValueError(
                f"server.plain: {self.server.address} is another machine, and everyone in between"
                " could read and change what is sent; leave plain out"
            )
        if self.compute.gpus_per_site is not None:
            raise ValueError("compute.gpus_per_site: is for simulations; see compute.devices")
        if budget.delta >= 1 / data.size:
            raise ValueError(
                f"budget.delta: {budget.delta:g} is not below 1 / data.size (1 / {data.size} ="
                f" {1 / data.size:.2g}), so it would allow publishing a whole unit"
            )
        if budget.per_job > budget.epsilon:
            raise ValueError(
                f"budget.per_job: {budget.per_job:g} is more than there is for life,"
                f" {budget.epsilon:g}"
            )
        try:
            budget.new_rule()
        except ConfigError as error:
            raise ValueError(f"budget.{error.key}: {error.problem}. {error.fix}") from None
        except FedprivError as error:
            raise ValueError(f"budget.rule: {error}") from None
        return self


def is_loopback(address: str) -> bool:
    """Whether a host:port is this machine, and what is sent there stays on it."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
