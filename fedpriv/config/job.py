"""The federation file: one job, as the coordinator proposes it.

Every class is a table of the TOML file, every field a key; the description beside a field
is its documentation. Paths are relative to the file and are made absolute when it is read.
What the server proposes here is never an order: each site checks it against its own limits
before it reads a record.

`lora.r`, `lora.alpha`, `privacy.clip_norm`, `privacy.sample_rate` and `optimizer.lr` go with the
model's size: where a file leaves them out, they come from `fedpriv.config.defaults`, and
their values here are those of sections that are made in Python.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from fedpriv.config.section import Section
from fedpriv.config.synthetic import SyntheticSection
from fedpriv.privacy import usual

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _has_a_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > MAX_PORT:
        raise ValueError(f"expected a port of at most {MAX_PORT}")
    return address


MAX_PORT = 65535
Address = Annotated[
    str,
    Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$"),
    AfterValidator(_has_a_port),
]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
FieldName = Literal["text", "label", "prompt", "completion", "messages"]
Wire = Literal["float32", "bf16", "int8"]
MAX_JOB_STEPS = 100_000
HUB_NAME = r"(?!.*\.(jsonl?|csv|tsv|parquet|arrow|gz)$)[\w.-]+/[\w.-]+"  # and no file's
MAX_SEED = 2**63 - 1
MAX_RATE, MAX_KAPPA = 1e6, 100.0  # beyond, float32 overflows or nothing is ever denoised
Beta = Annotated[float, Field(ge=0, lt=1)]
SHAPES = {
    "causal-lm": ({"text"}, {"prompt", "completion"}, {"messages"}),
    "classification": ({"text", "label"},),
}


class JobSection(Section):
    name: Name = Field("federation", description="name of the job and of its run directory")
    method: str = Field(
        "dp-lora", max_length=64, description="what a site computes and the server does with it"
    )
    sync: int = Field(
        1, ge=1, le=1000, description="private steps of a round; above 1, sites move by themselves"
    )
    rounds: int = Field(ge=1, le=100_000, description="rounds, of sync private steps per site each")
    engine: Literal["inline", "ray", "network"] = Field(
        "inline",
        description="where client and server meet: in threads, in processes, over the network",
    )
    wire: Wire = Field(
        "float32", description="how sites send updates; rounding what is released is free"
    )
    seed: int = Field(
        0, ge=0, le=MAX_SEED, description="public randomness only; never noise or sampling"
    )
    data_is_public: bool = Field(False, description="true only for research data")
    min_sites: int = Field(1, ge=1, description="replies without which a round does not count")
    round_timeout: str = Field("10m", description="how long a round waits, such as 30s or 10m")

    @field_validator("round_timeout")
    @classmethod
    def _duration(cls, value: str) -> str:
        seconds(value)
        return value


class ModelSection(Section):
    name: str = Field("embedded", min_length=1, description="embedded, a folder, or a hub name")
    task: Literal["causal-lm", "classification"] = "causal-lm"
    labels: tuple[str, ...] = Field((), description="class names; never discovered from data")
    max_length: int = Field(128, ge=2, le=131_072, description="tokens in a window")
    pooling: Literal["own", "mean"] = Field(
        "own", description="classification: the model's own head, or a layer on the mean token"
    )

    @model_validator(mode="after")
    def _labels_belong_to_classification(self) -> ModelSection:
        if self.task == "classification" and len(set(self.labels)) < 2:
            raise ValueError("classification needs labels: at least two distinct names")
        if self.task == "causal-lm" and self.labels:
            raise ValueError("labels belong to task = 'classification'")
        if self.task == "causal-lm" and self.pooling != "own":
            raise ValueError("pooling belongs to task = 'classification'")
        return self


class DataSection(Section):
    columns: dict[str, str] = Field({"text": "text"}, description="field → column of the files")

    @field_validator("columns")
    @classmethod
    def _known_fields(cls, value: dict[str, str]) -> dict[str, str]:
        for field in value.keys() - set(get_args(FieldName)):
            known = ", ".join(get_args(FieldName))
            raise ValueError(f"columns: {field!r} is not a field; the fields are {known}")
        return value


class LoraSection(Section):
    r: int = Field(8, ge=1, le=1024, description="rank")
    alpha: float = Field(16.0, gt=0, description="scale of the update is alpha / r")
    target_modules: Literal["auto", "all-linear"] | tuple[str, ...] = Field(
        "auto",
        description="auto: the attention projections peft names for this architecture;"
        " all-linear: every linear layer but the output",
    )
    frozen_a: bool = Field(
        False, description="train lora_B alone, so that averaging adapters is exact"
    )
    modules_to_save: tuple[str, ...] = Field(
        (), description="layers trained whole, such as lm_head; a classifier's head always is"
    )


class PrivacySection(Section):
    epsilon: float = Field(8.0, gt=0, description="proposed per site, for this job")
    delta: float = Field(usual.DELTA, gt=0, lt=1, description="must be below 1 / declared size")
    sample_rate: float = Field(0.05, gt=0, le=1, description="chance of a unit to be in a step")
    clip_norm: float = Field(
        1.0, ge=usual.MIN_CLIP, le=usual.MAX_CLIP, description="bound on a unit's gradient, L2"
    )
    unit: str = Field(usual.UNIT, min_length=1, description="record, or an id column")
    max_records_per_unit: int = Field(
        usual.MAX_RECORDS_PER_UNIT, ge=1, description="windows or records a unit may hold"
    )
    numerics: Literal["default", "strict"] = Field(
        "default", description="strict: integer sums and noise; rounding is no assumption; slower"
    )


class OptimizerSection(Section):
    name: Literal["sgd", "adamw"] = "adamw"
    lr: float = Field(1e-3, gt=0, le=MAX_RATE)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = Field(
        0,
        ge=0,
        le=MAX_JOB_STEPS,
        description="its steps in which the rate rises to lr",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd only")
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), description="adamw only")
    weight_decay: float = Field(0.0, ge=0, le=MAX_RATE)


class ServerOptimizerSection(OptimizerSection):
    """Moves along the mean of the sites' own moves; by default, takes it as it is."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = Field(1.0, gt=0, le=MAX_RATE)


class DenoiseSection(Section):
    where: Literal["off", "server", "gate", "site"] = Field(
        "off",
        description="server: on the sum of all sites; gate: in rounds where that is better;"
        " site: in the local steps of sync > 1",
    )
    kappa: float | Literal["auto"] = Field(
        1.02, description="how far above the noise a singular value counts; auto: by shape"
    )
    norm: Literal["kept", "shrunk"] = Field(
        "kept", description="length of a denoised matrix: as before, or what is left of it"
    )

    @field_validator("kappa", mode="before")
    @classmethod
    def _above_the_noise(cls, value: object) -> object:
        if value != "auto" and not (isinstance(value, int | float) and 1 <= value <= MAX_KAPPA):
            raise ValueError(f"expected a number from 1 to {MAX_KAPPA:g}, or auto")
        return value


class GateSection(Section):
    """Moves to choose from in each round, by the loss on records that are not private."""

    data: Path = Field(description="public or coordinator-owned records, columns as in [data]")
    rates: tuple[Annotated[float, Field(gt=0, le=MAX_RATE)], ...] = Field(
        (1.0,), min_length=1, description="multiples of the learning rate to choose from"
    )
    share: float = Field(
        0.1, gt=0, le=1, description="of a round's work that choosing may add, by count of records"
    )

    @field_validator("rates")
    @classmethod
    def _distinct(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a rate comes twice")
        return value


class EvaluationSection(Section):
    data: Path = Field(description="public or coordinator-owned records, columns as in [data]")
    every: int = Field(1, ge=1, description="rounds between two evaluations")
    limit: int | None = Field(None, ge=1, description="use only the first so many records")
    hardest: float = Field(
        0.0, ge=0, le=1, description="share of the records, worst for the base model, also reported"
    )
    tuning: Path | None = Field(None, description="further records, to choose settings by")
    tuning_share: float = Field(
        0.0, ge=0, lt=1, description="of data, set apart to choose settings by; without tuning only"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.tuning is not None and self.tuning_share:
            raise ValueError("tuning and tuning_share exclude each other: name a file or a share")
        return self

    def files(self) -> dict[str, Path]:
        """The files of evaluation records, by key."""
        found = {"evaluation.data": self.data, "evaluation.tuning": self.tuning}
        return {key: path for key, path in found.items() if path is not None}


class ComputeSection(Section):
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["float32", "mixed", "bfloat16", "float64"] = Field(
        "float32",
        description="mixed: products with frozen weights in bfloat16, all else in float32;"
        " bfloat16: all but what is trained",
    )
    microbatch: int | None = Field(
        None, ge=1, description="private records computed at once, at most; default: 4, on a GPU 32"
    )
    gradient_checkpointing: bool = Field(
        False, description="compute layers twice instead of keeping what they made"
    )
    devices: int = Field(
        1, ge=1, le=64, description="GPUs that share each step, from device on; or CPU processes"
    )
    gpus_per_site: float | None = Field(
        None,
        gt=0,
        description="engine ray: what a site that computes gets of the GPUs; default: its share",
    )
    engine: Literal["fedpriv", "opacus"] = Field(
        "fedpriv", description="who computes per-record gradients; opacus knows more layers"
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="sites of a simulation that compute at once, each with a copy of the model;"
        " default: one, or on a CPU as many as there are cores while the copies are small",
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.dtype == "mixed" and self.engine != "fedpriv":
            raise ValueError("dtype: 'mixed' needs engine 'fedpriv'")
        if self.gradient_checkpointing and self.engine != "fedpriv":
            raise ValueError("gradient_checkpointing: needs engine 'fedpriv'")
        if self.gpus_per_site is not None and self.gpus_per_site > 1 and self.gpus_per_site % 1:
            raise ValueError("gpus_per_site: above 1, only whole GPUs")
        return self


class ServerSection(Section):
    """Where the sites find the server; engine ``network`` only."""

    address: Address = Field(description="host:port that sites dial")
    listen: Address | None = Field(
        None, description="host:port to bind; default: every interface, the port of address"
    )
    names: tuple[str, ...] = Field((), description="further host names and IPs it is known by")
    pki: Path = Field(Path("pki"), description="folder that fedpriv provision writes")
    client_certificates: bool = Field(
        False, description="mutual TLS: sites show a certificate before they say a word"
    )
    health: Address | None = Field(None, description="host:port of the gRPC health service")
    wait: str = Field("10m", description="how long the first round waits for the last sites")

    @property
    def bound(self) -> str:
        """The host:port to listen on."""
        return self.listen or f"0.0.0.0:{self.address.rpartition(':')[2]}"

    @field_validator("wait")
    @classmethod
    def _duration(cls, value: str) -> str:
        seconds(value)
        return value


class SiteSection(Section):
    """A site: with its data for a simulation, by name alone over the network."""

    name: Name
    data: Path | str | None = Field(
        None, description="a file, a saved dataset folder, or owner/name of a hub"
    )
    size: int | None = Field(
        None, ge=1, le=usual.MAX_UNITS, description="declared, in units; typed, never derived"
    )
    epsilon: float | None = Field(None, gt=0, description="the site's cap for this job")
    ledger: Path | None = Field(
        None, description="a ledger that outlives the run, made by fedpriv ledger init"
    )
    witness: Path | None = Field(None, description="told of every row, on another disk")


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
    gate: GateSection | None = None
    synthetic: SyntheticSection | None = None
    method: dict[str, JsonValue] = Field(
        {}, description="settings of a method from another package, which checks them"
    )
    evaluation: EvaluationSection
    compute: ComputeSection = ComputeSection()
    server: ServerSection | None = None
    sites: tuple[SiteSection, ...] = Field(min_length=1)

    @property
    def steps(self) -> int:
        """Private steps of each site in the whole job."""
        return self.job.rounds * self.job.sync

    def files(self) -> dict[str, Path]:
        """The files and folders of records, by key; what the hub holds is none of them."""
        sites = {f"sites.{site.name}.data": site.data for site in self.sites}
        found = {key: path for key, path in sites.items() if isinstance(path, Path)}
        gate = {} if self.gate is None else {"gate.data": self.gate.data}
        made_up = {} if self.synthetic is None else self.synthetic.files()
        return {**found, **self.evaluation.files(), **gate, **made_up}

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
        self._has_a_choice()
        self._fits_the_engine()
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
        if steps == 1 and where == "site":
            raise ValueError(
                "denoise.where: 'site' is for local steps, and job.sync is 1; use 'server'"
            )
        if steps == 1 and self.server_optimizer is not None:
            raise ValueError(
                "server_optimizer: moves along the sites' own moves, and job.sync is 1, so that"
                " optimizer moves at the server; leave it out"
            )
        if steps > 1 and where in ("server", "gate"):
            raise ValueError(
                f"denoise.where: {where!r} needs noise of one known size, and with job.sync ="
                f" {steps} the server gets moves; use 'site'"
            )

    def _has_a_choice(self) -> None:
        """A gate has moves to choose from."""
        gated = self.denoise.where == "gate"
        if self.gate is None:
            if gated:
                raise ValueError("gate: is missing; denoise.where 'gate' chooses by its records")
            return
        if not gated and len(self.gate.rates) < 2:
            raise ValueError(
                "gate: has nothing to choose from; set denoise.where to 'gate', or name several"
                " rates"
            )

    def _fits_the_engine(self) -> None:
        """A simulation needs the sites' data; over the network no site's data is named here."""
        if self.compute.gpus_per_site is not None and self.job.engine != "ray":
            raise ValueError("compute.gpus_per_site: is for engine 'ray'")
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
            for key in ("data", "size"):
                if getattr(site, key) is None:
                    raise ValueError(f"sites.{index}.{key}: is missing; a simulation needs it")


def seconds(duration: str) -> float:
    """Seconds of a duration such as ``"90s"``, ``"10m"`` or ``"2h"``.

    Raises:
        ValueError: it is not a number followed by s, m or h.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])", duration)
    if match is None or float(match[1]) == 0:
        raise ValueError("expected a positive number followed by s, m or h, such as 10m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
