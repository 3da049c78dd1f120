"""The federation file: one job, as the coordinator proposes it.

Every class is a table of the TOML file, every field a key; the description beside a field
is its documentation. Paths are relative to the file and are made absolute when it is read.
What the server proposes here is never an order: each site checks it against its own limits
before it reads a record.

`lora.r`, `lora.alpha`, `privacy.clip_norm`, `privacy.sample_rate` and `optimizer.lr` go with the
model's size: where a file leaves them out, `load_job` takes them from the table of
`fedpriv.defaults`. A section that is made in Python knows no model and has those of the
table's last row, which serves a model of any size. docs/configuration.md is made of the
descriptions here by `scripts/make_config_reference.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from fedpriv.config.controller import ControllerSection
from fedpriv.config.looks import LooksSection, check_held_out, held_out_units
from fedpriv.config.personal import PersonalSection
from fedpriv.config.sources import OtherSources, Source
from fedpriv.config.synthetic import SyntheticSection
from fedpriv.config.tracking import TrackingSection
from fedpriv.config.trust import check_shared_noise, check_sum, usual_max_colluding
from fedpriv.data.config import HELD_OUT, SHAPES, DataSection, HeldOut
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.names import (
    ADDRESS_OR_AUTO,
    MAX_JOB_STEPS,
    MAX_SEED,
    METRICS,
    Address,
    Name,
    Port,
    Wire,
    _has_a_port,
    seconds,
)
from fedpriv.privacy import usual
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.config import ComputeSection
from fedpriv.public_update.config import (
    GATE,
    DenoiseSection,
    OptimizerSection,
    ServerOptimizerSection,
)
from fedpriv.section import Section


class JobSection(Section):
    """What is run, for how long, and where."""

    name: Name = Field("federation", description="The name of the job and of its run directory.")
    method: str = Field(
        "dp-lora",
        max_length=64,
        description="What a site computes and what the server does with it: dp-lora, pe-sgd, or a"
        " method of another package that is installed.",
    )
    sync: int = Field(
        1,
        ge=1,
        le=1000,
        description="Private steps in a round. Above 1, each site takes them by itself and sends"
        " the move that they made together.",
    )
    rounds: int = Field(
        ge=1, le=100_000, description="Rounds; each has `sync` private steps at every site."
    )
    engine: Literal["inline", "ray", "network"] = Field(
        "inline",
        description="Where sites and server meet: in threads of one process (inline), in processes"
        " of Ray on one machine or several (ray), or over the network (network).",
    )
    ray_address: str | None = Field(
        None,
        pattern=ADDRESS_OR_AUTO,
        description="With engine ray only: the host:port of a Ray cluster that is there already, on"
        " whose machines the sites are, or auto for the one that this machine is part of"
        " ([several machines](models.md#several-machines)). Without it, Ray is started on this"
        " machine for the time of the run.",
    )
    wire: Wire = Field(
        "float32",
        description="The number format in which sites send updates. A shorter one costs no"
        " privacy, because what is rounded was released already.",
    )
    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="Seed of public randomness, such as the adapter's first values; never of noise"
        " or sampling.",
    )
    data_is_public: bool = Field(
        False,
        description="Set it to true for public research data only: it allows runs that protect"
        " nobody, for comparisons.",
    )
    min_sites: int = Field(
        1, ge=1, description="How many sites have to answer for a round to count."
    )
    round_timeout: str = Field(
        "10m", description="How long a round waits for the sites, such as 30s or 10m."
    )

    @field_validator("ray_address")
    @classmethod
    def _of_a_port(cls, value: str | None) -> str | None:
        return value if value is None or value == "auto" else _has_a_port(value)

    @field_validator("round_timeout")
    @classmethod
    def _duration(cls, value: str) -> str:
        seconds(value)
        return value


class EvaluationSection(Section):
    """The records on which the server measures what training reached."""

    data: Path = Field(
        description="File of records to report on: public or the coordinator's own, with columns"
        " as in [data]."
    )
    every: int = Field(1, ge=1, description="Rounds from one evaluation to the next.")
    limit: int | None = Field(
        None, ge=1, description="Use the first so many records only. Without it, all."
    )
    hardest: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the records, those that are worst for the base model, whose loss is"
        " reported by itself, too.",
    )
    tuning: Path | None = Field(
        None,
        description="File of further records by which `fedpriv compare` chooses settings.",
    )
    tuning_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of `data` that is set apart to choose settings by, where no `tuning` is"
        " named.",
    )
    sites: LooksSection | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.tuning is not None and self.tuning_share:
            raise ValueError("tuning and tuning_share exclude each other: name a file or a share")
        return self

    def files(self) -> dict[str, Path]:
        """The files of evaluation records, by key."""
        found = {"evaluation.data": self.data, "evaluation.tuning": self.tuning}
        return {key: path for key, path in found.items() if path is not None}


class ServerSection(Section):
    """Where the sites find the server; with `job.engine = "network"` only."""

    address: Address = Field(description="The host:port that sites dial.")
    listen: Address | None = Field(
        None,
        description="The host:port to listen at. Without it, the port of `address` on every IPv4"
        " interface.",
    )
    names: tuple[str, ...] = Field(
        (), description="Further host names and IP addresses for the server's certificate."
    )
    pki: Path = Field(
        Path("pki"), description="Folder of keys and certificates that fedpriv provision writes."
    )
    client_certificates: bool = Field(
        False, description="Mutual TLS: a site shows its certificate before it says a word."
    )
    health: Address | None = Field(
        None, description="The host:port of the gRPC health service. Without it, there is none."
    )
    metrics_port: Port | None = Field(None, description=METRICS)
    wait: str = Field(
        "10m", description="How long the first round waits for the last sites, such as 10m."
    )

    @property
    def bound(self) -> str:
        """The host:port to listen on."""
        return self.listen or f"0.0.0.0:{self.address.rpartition(':')[2]}"

    @field_validator("wait")
    @classmethod
    def _duration(cls, value: str) -> str:
        seconds(value)
        return value


class SiteSection(OtherSources):
    """A site. In a simulation its data is named here; over the network it has a name alone."""

    name: Name = Field(description="The site's name.")
    data: Path | str | None = Field(
        None,
        description="Its records: a file, a saved dataset folder, or owner/name at a hub. A"
        " simulation needs it, or `[sites.omop]` or `[sites.fhir]` in its place.",
    )
    held_out: HeldOut | None = Field(
        None,
        description=HELD_OUT,
    )
    held_out_size: int | None = Field(
        None,
        ge=1,
        le=usual.MAX_UNITS,
        description="Where `held_out` is a file: how many units are in it, as a person states it."
        " Needed for `[evaluation.sites]`.",
    )
    size: int | None = Field(
        None,
        ge=1,
        le=usual.MAX_UNITS,
        description="Declared size: how many units it has, as a person states it; never counted"
        " from the records. A simulation needs it.",
    )
    epsilon: float | None = Field(
        None, gt=0, description="ε that this job may cost the site's people at most."
    )
    epsilon_alone: float | None = Field(
        None,
        gt=0,
        description="The same if every other site in the secure sum worked with the server. Without"
        " it, whatever the job costs then.",
    )
    ledger: Path | None = Field(
        None,
        description="A ledger that outlives the run, made by fedpriv ledger init. Without it, the"
        " run makes one of its own.",
    )
    witness: Path | None = Field(
        None, description="The ledger's witness: a file on another disk, told of every row."
    )

    @property
    def records(self) -> Source | None:
        """Where they are; None over the network."""
        return self.source(self.data)


class JobConfig(Section):
    """A whole federation file."""

    job: JobSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    lora: LoraSection = LoraSection()
    privacy: PrivacySection = PrivacySection()
    optimizer: OptimizerSection = OptimizerSection()
    server_optimizer: ServerOptimizerSection | None = None
    denoise: DenoiseSection = DenoiseSection()
    controller: ControllerSection | None = None
    synthetic: SyntheticSection | None = None
    method: dict[str, JsonValue] = Field(
        {}, description="Settings of a method from another package, which checks them."
    )
    evaluation: EvaluationSection
    personal: PersonalSection = PersonalSection()
    compute: ComputeSection = ComputeSection()
    tracking: TrackingSection = TrackingSection()
    server: ServerSection | None = None
    sites: tuple[SiteSection, ...] = Field(min_length=1)

    @property
    def steps(self) -> int:
        """Private steps of each site that train, in the whole job."""
        return self.job.rounds * self.job.sync

    @property
    def slots(self) -> int:
        """Private steps of each site in the whole job, spare ones and those of looks among them."""
        looks = self.evaluation.sites
        return self.steps + self.privacy.spare_slots + (0 if looks is None else looks.steps)

    @property
    def max_colluding(self) -> int | None:
        """How many sites of a secure sum may collude; None where each adds noise by itself."""
        if self.privacy.trust == "local":
            return None
        stated = self.privacy.max_colluding
        return usual_max_colluding(len(self.sites)) if stated is None else stated

    def files(self) -> dict[str, Path]:
        """The files and folders of records, by key; what the hub holds is none of them."""
        sites = {
            f"sites.{site.name}.{key}": path
            for site in self.sites
            for key, path in (
                ("data", site.data),
                ("omop", site.omop and site.omop.file),
                ("fhir", site.fhir and site.fhir.file),
                ("held_out", site.held_out),
            )
        }
        found = {key: path for key, path in sites.items() if isinstance(path, Path)}
        controller = None if self.controller is None else self.controller.data
        rewarding = {} if controller is None else {"controller.data": controller}
        made_up = {} if self.synthetic is None else self.synthetic.files()
        return {**found, **self.evaluation.files(), **rewarding, **made_up}

    @model_validator(mode="before")
    @classmethod
    def _no_gate(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("gate") is not None:
            raise ValueError(f"gate: {GATE}; leave this table out")
        return {k: v for k, v in value.items() if k != "gate"} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> JobConfig:
        names = [site.name for site in self.sites]
        if len(set(names)) < len(names):
            raise ValueError("sites: two sites have the same name")
        if self.job.min_sites > len(names):
            raise ValueError(
                f"job.min_sites: {self.job.min_sites} is more than the {len(names)} sites"
            )
        allowed = SHAPES[self.model.task]
        if set(self.data.columns) not in allowed:
            shapes = " or ".join(" + ".join(sorted(shape)) for shape in allowed)
            raise ValueError(
                f"data.columns: task {self.model.task!r} needs {shapes},"
                f" not {' + '.join(sorted(self.data.columns))}"
            )
        self._steps_fit()
        self._has_looks()
        if self.controller is not None:
            self._fits_a_controller(self.controller)
        self._fits_the_engine()
        if self.model.quantize is not None:
            self._reads_quantised()
        self._has_whom_it_trusts()
        for site in self.sites:
            if site.size is not None and self.privacy.delta >= 1 / site.size:
                raise ValueError(
                    f"privacy.delta: {self.privacy.delta:g} is not below 1 / size of site"
                    f" {site.name!r} (1 / {site.size} = {1 / site.size:.2g}), so it would allow"
                    " publishing a whole unit"
                )
        return self

    def _steps_fit(self) -> None:
        """Whoever consumes the private gradients denoises them, where their noise is known."""
        steps, where = self.job.sync, self.denoise.where
        if self.steps > MAX_JOB_STEPS:
            raise ValueError(
                f"job.sync: {self.job.rounds} × {steps} steps are more than {MAX_JOB_STEPS}"
            )
        if self.slots > MAX_JOB_STEPS:
            key, added = "evaluation.sites.looks", "those of all looks"
            if self.evaluation.sites is None:
                key, added = "privacy.spare_slots", "the spare ones"
            raise ValueError(
                f"{key}: with {added}, {self.slots} steps are more than {MAX_JOB_STEPS}"
            )
        if steps == 1 and where == "site":
            raise ValueError(
                "denoise.where: 'site' is for local steps, and job.sync is 1; use 'server'"
            )
        if steps == 1 and self.server_optimizer is not None:
            raise ValueError(
                "server_optimizer: moves along the sites' own moves, and job.sync is 1, so that"
                " optimizer moves at the server; leave it out"
            )
        if steps > 1 and where == "server":
            raise ValueError(
                f"denoise.where: 'server' needs noise of one known size, and with job.sync ="
                f" {steps} the server gets moves; use 'site'"
            )

    def _has_looks(self) -> None:
        """Each look has a round of its own, and where sites are described, records to look at."""
        looks, privacy = self.evaluation.sites, self.privacy
        for index, site in enumerate(self.sites):
            key = f"sites.{index}"
            check_held_out(site.held_out, site.size, site.held_out_size, privacy.delta, key)
        if looks is None:
            return
        if looks.looks > self.job.rounds:
            raise ValueError(
                f"evaluation.sites.looks: {looks.looks} looks need as many rounds, and there are"
                f" {self.job.rounds}"
            )
        for index, site in enumerate(self.sites if self.job.engine != "network" else ()):
            if site.held_out is None:
                raise ValueError(
                    f"sites.{index}.held_out: is missing; evaluation.sites looks at such records"
                )
            if held_out_units(site.held_out, site.size or 1, site.held_out_size) is None:
                raise ValueError(
                    f"sites.{index}.held_out_size: is missing; evaluation.sites divides by it"
                )

    def _has_whom_it_trusts(self) -> None:
        """A secure sum has sites to add up, and nothing beside it that a share can't give."""
        privacy = self.privacy
        if privacy.trust == "secure-sum":
            roster = privacy.roster is not None
            network = self.job.engine == "network"
            check_sum(len(self.sites), privacy.max_colluding, network=network, roster=roster)
            check_shared_noise(
                sync=self.job.sync,
                denoise=self.denoise.where,
                wire=self.job.wire,
                looks=self.evaluation.sites is not None,
            )
            return
        for key, absent in (("max_colluding", None), ("spare_slots", 0), ("roster", None)):
            if getattr(privacy, key) != absent:
                raise ValueError(f"privacy.{key}: belongs to trust = 'secure-sum'; leave it out")
        for index, site in enumerate(self.sites):
            if site.epsilon_alone is not None:
                raise ValueError(
                    f"sites.{index}.epsilon_alone: belongs to trust = 'secure-sum'; with 'local' it"
                    " is the same as epsilon"
                )

    def _fits_a_controller(self, controller: ControllerSection) -> None:
        """What a controller decides reaches each private step, and its noise is of one size."""
        if self.job.sync > 1:
            raise ValueError(
                "controller: decides before each private step, and with job.sync ="
                f" {self.job.sync} sites make several by themselves; leave it out, or use sync = 1"
            )
        if self.denoise.where != "off" and controller.groups != "model":
            raise ValueError(
                "denoise.where: needs noise of one known size, and with a controller of"
                f" {controller.groups} each group has its own; use 'off', or controller.groups ="
                " 'model'"
            )
        if not controller.adaptive:
            return
        for key, is_set in (
            ("privacy.trust", self.privacy.trust != "local"),
            ("evaluation.sites", self.evaluation.sites is not None),
        ):
            if is_set:
                raise ValueError(
                    f"{key}: needs the same noise in every step, and controller.adaptive moves it;"
                    " leave one of them out"
                )

    def _reads_quantised(self) -> None:
        found = self.compute.not_beside_quantised()
        if found is not None:
            key, value, known = found
            raise ValueError(
                f"compute.{key}: {value!r} can't be used with model.quantize, beside which all else"
                f" is float32; use {' or '.join(known)}"
            )

    def _fits_the_engine(self) -> None:
        """A simulation needs the sites' data; over the network no site's data is named here."""
        if self.compute.gpus_per_site is not None and self.job.engine != "ray":
            raise ValueError("compute.gpus_per_site: is for engine 'ray'")
        if self.job.ray_address is not None and self.job.engine != "ray":
            raise ValueError("job.ray_address: is for engine 'ray'")
        if self.job.engine == "ray":
            if self.compute.devices > 1:
                raise ValueError("compute.devices: with engine 'ray', each site has one device")
            if ":" in self.compute.device:
                raise ValueError("compute.device: with engine 'ray', Ray says which GPU; use auto")
        if self.job.engine == "network":
            if self.server is None:
                raise ValueError("server: is missing; engine 'network' needs its address")
            for index, site in enumerate(self.sites):
                for key in site.model_fields_set - {"name"}:
                    raise ValueError(
                        f"sites.{index}.{key}: belongs to the site's own file when engine is"
                        " 'network'; here a site is only named"
                    )
            return
        for index, site in enumerate(self.sites):
            site.check_one(site.data, f"sites.{index}", "data")
            if site.size is None:
                raise ValueError(f"sites.{index}.size: is missing; a simulation needs it")
