"""The federation file: one job, as the coordinator proposes it.

Every class is a table of the TOML file, every field a key; the description beside a field
is its documentation. Paths are relative to the file and are made absolute when it is read.
What the server proposes here is never an order: each site checks it against its own limits
before it reads a record.

`lora.r`, `lora.alpha`, `privacy.clip_norm`, `privacy.sample_rate` and `optimizer.lr` go with the
model's size: where a file leaves them out, `load_job` takes them from the table of
`fedpriv.config.defaults`. A section that is made in Python knows no model and has those of the
table's last row, which serves a model of any size. docs/configuration.md is made of the
descriptions here by `scripts/make_config_reference.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, JsonValue, field_validator, model_validator

from fedpriv.config.controller import ControllerSection
from fedpriv.config.defaults import ANY_SIZE
from fedpriv.config.looks import LooksSection, check_held_out, held_out_units
from fedpriv.config.personal import PersonalSection
from fedpriv.config.section import Section
from fedpriv.config.sources import OtherSources, Source
from fedpriv.config.synthetic import SyntheticSection
from fedpriv.config.task import Task
from fedpriv.config.tracking import TrackingSection
from fedpriv.config.trust import check_shared_noise, check_sum, usual_max_colluding
from fedpriv.privacy import usual

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _has_a_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > MAX_PORT:
        raise ValueError(f"expected a port of at most {MAX_PORT}")
    return address


MAX_PORT = 65535
HOST_PORT = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}"
ADDRESS_OR_AUTO = rf"^(auto|{HOST_PORT})$"
Address = Annotated[
    str,
    Field(pattern=rf"^{HOST_PORT}$"),
    AfterValidator(_has_a_port),
]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
FieldName = Literal["text", "label", "prompt", "completion", "messages"]
Wire = Literal["float32", "bf16", "int8"]
Bits = Literal["8bit", "4bit"]  # of a quantised weight
Share = Annotated[float, Field(gt=0, lt=1)]
Layer = Annotated[str, Field(max_length=512)]  # its name, or its path in the model
Label = Annotated[str, Field(max_length=256)]
MAX_LAYERS, MAX_LABELS = 4_096, 10_000  # that anybody lists; a job is sent to every site
MAX_PATH = 4_096  # of Linux
Layers = Annotated[tuple[Layer, ...], Field(max_length=MAX_LAYERS)]
HeldOut = Share | Path  # of a site's units, or further records
HELD_OUT = (
    "Records of the site that nobody trains on and every model is tested on: a share of its units,"
    " such as 0.2, or a file of further records."
)
METRICS = (
    "The port at which this machine, and no other, is told public figures of the process in the"
    " format of Prometheus. Without it, nobody is."
)
MAX_JOB_STEPS = 100_000
BESIDE_QUANTISED = {  # of `compute`, with `model.quantize`: all but the weights is float32
    "dtype": ("float32", "mixed", "auto"),
    "engine": ("fedpriv",),
}
HUB_NAME = r"(?!.*\.(jsonl?|csv|tsv|parquet|arrow|gz)$)[\w.-]+/[\w.-]+"  # and no file's
MAX_SEED = 2**63 - 1
MAX_RATE, MAX_KAPPA = 1e6, 100.0  # beyond, float32 overflows or nothing is ever denoised
Beta = Annotated[float, Field(ge=0, lt=1)]
SHAPES = {
    "causal-lm": ({"text"}, {"prompt", "completion"}, {"messages"}),
    "classification": ({"text", "label"},),
}


def check_distinct(names: Sequence[str], key: str) -> None:
    """Check that no name of a class comes twice: one of its outputs would never be learned.

    Raises:
        ValueError: one does.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{key}: {twice!r} comes twice; name each class once")


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


class ModelSection(Section):
    """The base model and its task."""

    name: str = Field(
        "embedded",
        min_length=1,
        max_length=MAX_PATH,
        description="The base model: embedded (the one in the package), a folder, or the name of"
        " one at a hub.",
    )
    task: Task = Field(
        "causal-lm",
        description="What is learned: to continue text (causal-lm), or to give a text one of"
        " `labels` (classification).",
    )
    labels: tuple[Label, ...] = Field(
        (),
        max_length=MAX_LABELS,
        description="Classification only: the names of the classes, at least two. They are typed"
        " and never discovered from data.",
    )
    max_length: int = Field(
        128,
        ge=2,
        le=131_072,
        description="Tokens in a window; a longer text is several windows, or is cut.",
    )
    pooling: Literal["own", "mean"] = Field(
        "own",
        description="Classification only: the model's own head (own), or a linear layer on the"
        " mean of the token vectors (mean).",
    )
    quantize: Bits | None = Field(
        None,
        description="Keep the frozen weights of linear layers in 8 bits (8bit) or in 4 (4bit, NF4),"
        " for less memory. Without it, in full. Needs `pip install 'fedpriv[quantized]'` at every"
        " site and at the server ([models](models.md#frozen-weights-in-8-or-4-bits)).",
    )

    @model_validator(mode="after")
    def _labels_belong_to_classification(self) -> ModelSection:
        if self.task == "classification" and len(set(self.labels)) < 2:
            raise ValueError("classification needs labels: at least two distinct names")
        check_distinct(self.labels, "labels")
        if self.task == "causal-lm" and self.labels:
            raise ValueError("labels belong to task = 'classification'")
        if self.task == "causal-lm" and self.pooling != "own":
            raise ValueError("pooling belongs to task = 'classification'")
        return self


class DataSection(Section):
    """Which columns of the records are used, the same at every site."""

    columns: dict[str, str] = Field(
        {"text": "text"},
        description="From each field to the column of the files that holds it. The fields are"
        " text; prompt and completion; messages; or, for a classification, text and label.",
    )
    max_empty: float = Field(
        usual.MAX_EMPTY,
        ge=0,
        le=1,
        description="The largest share of a site's records that may give nothing to learn from,"
        " such as conversations without an answer. Beyond it, or where no record gives anything,"
        " a site does not begin, and nothing is spent.",
    )

    @field_validator("columns")
    @classmethod
    def _known_fields(cls, value: dict[str, str]) -> dict[str, str]:
        for field in value.keys() - set(get_args(FieldName)):
            known = ", ".join(get_args(FieldName))
            raise ValueError(f"columns: {field!r} is not a field; the fields are {known}")
        return value


class LoraSection(Section):
    """The adapter that is trained: LoRA, as in peft."""

    r: int = Field(ANY_SIZE.r, ge=1, le=1024, description="Rank of the adapter's matrices.")
    alpha: float = Field(
        ANY_SIZE.alpha,
        gt=0,
        description="The adapter's product is scaled by alpha / r. Where a file has r and no"
        " alpha, alpha is chosen so that alpha / r is that of the table.",
    )
    target_modules: Literal["auto", "all-linear"] | Layers = Field(
        "all-linear",
        description="The layers that get an adapter: every linear layer but the output"
        " (all-linear), the attention projections that peft names for this architecture (auto), or"
        " a list of names.",
    )
    frozen_a: bool = Field(
        False,
        description="Train only lora_B, so that the mean of several adapters is exact, and an"
        " update about half as long.",
    )
    modules_to_save: Layers = Field(
        (),
        description="Layers that are trained whole, such as lm_head. A classifier's head always"
        " is.",
    )


class PrivacySection(Section):
    """What the server proposes; what a site grants is in the site's own file."""

    epsilon: float = Field(
        8.0,
        gt=0,
        description="ε that is proposed to every site for this whole job. A site takes the smaller"
        " of this and its own cap.",
    )
    delta: float = Field(
        usual.DELTA, gt=0, lt=1, description="δ of the claim; below 1 / declared size of any site."
    )
    sample_rate: float = Field(
        ANY_SIZE.sample_rate, gt=0, le=1, description="Chance of each unit to be in a step."
    )
    clip_norm: float = Field(
        ANY_SIZE.clip_norm,
        ge=usual.MIN_CLIP,
        le=usual.MAX_CLIP,
        description="The longest that what one unit adds to a step may be, in the L2 norm.",
    )
    unit: str = Field(
        usual.UNIT,
        min_length=1,
        max_length=256,
        description="What is protected: each record by itself (record), or everything under one"
        " value of the id column that is named here, such as a patient number.",
    )
    max_records_per_unit: int = Field(
        usual.MAX_RECORDS_PER_UNIT,
        ge=1,
        description="How many records, or windows of a long text, of one unit are used at most.",
    )
    numerics: Literal["default", "strict"] = Field(
        "default",
        description="With strict, each record is computed alone and sums are whole numbers, so"
        " that how computers round is no longer among the assumptions; slower.",
    )
    trust: Literal["local", "secure-sum"] = Field(
        "local",
        description="Who adds the noise. With local, every site all that its claim needs. With"
        " secure-sum, the server learns only the sum of a round, and each site adds a share; the"
        " claim then assumes that at most `max_colluding` sites work with the server, and every"
        " site enforces a second one that assumes nothing ([secure sum](secure-sum.md)).",
    )
    max_colluding: int | None = Field(
        None,
        ge=0,
        le=usual.MAX_MEMBERS,
        description="With secure-sum: how many of the sites in a sum may work with the server, or"
        " forget their noise, without the claim being lost. More cost noise. Without it, 1 of up to"
        " four sites, and of n sites (n − 1) / 2, rounded down.",
    )
    spare_slots: int = Field(
        0,
        ge=0,
        le=MAX_JOB_STEPS,
        description="With secure-sum: steps beside those of the rounds, paid for with them, with"
        " which a job goes on after a step that could not be completed.",
    )
    roster: Path | None = Field(
        None,
        description="With secure-sum over the network: the coordinator's copy of the roster, the"
        " names and keys of the sites.",
    )


class OptimizerSection(Section):
    """Moves along the private gradients: at the server, or at the sites where `job.sync` > 1."""

    name: Literal["sgd", "adamw"] = Field("adamw", description="The optimiser.")
    lr: float = Field(
        ANY_SIZE.lr,
        gt=0,
        le=MAX_RATE,
        description="Learning rate. The table has rates of adamw only, so with sgd it has to be"
        " written down.",
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="How the rate changes after the warm-up: not at all, or down to nothing at the"
        " last step.",
    )
    warmup: int = Field(
        0,
        ge=0,
        le=MAX_JOB_STEPS,
        description="Steps of this optimiser in which the rate rises to lr.",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of sgd.")
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), description="How slowly adamw forgets gradients, and their squares."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=MAX_RATE,
        description="How much of every value is taken off in a step, times the rate.",
    )


class ServerOptimizerSection(OptimizerSection):
    """Moves along the mean of the sites' own moves (`job.sync` > 1); by default, takes it whole."""

    name: Literal["sgd", "adamw"] = Field("sgd", description="The optimiser.")
    lr: float = Field(1.0, gt=0, le=MAX_RATE, description="Learning rate; 1 takes the mean whole.")


class DenoiseSection(Section):
    """Taking noise out of what was released, which costs no privacy."""

    where: Literal["off", "server", "gate", "site"] = Field(
        "off",
        description="Where it is done: nowhere (off), on the sum of all sites (server), in rounds"
        " where the gate finds that better (gate), or in the local steps of sync > 1 (site).",
    )
    kappa: float | Literal["auto"] = Field(
        1.02,
        description=f"How far above the edge of pure noise a singular value has to be to count,"
        f" from 1 to {MAX_KAPPA:g}; with auto, by the matrix's shape.",
    )
    norm: Literal["kept", "shrunk"] = Field(
        "kept",
        description="The length of a denoised matrix: the one it had before (kept), or that of"
        " what is left (shrunk).",
    )

    @field_validator("kappa", mode="before")
    @classmethod
    def _above_the_noise(cls, value: object) -> object:
        if value != "auto" and not (isinstance(value, int | float) and 1 <= value <= MAX_KAPPA):
            raise ValueError(f"expected a number from 1 to {MAX_KAPPA:g}, or auto")
        return value


class GateSection(Section):
    """Moves to choose from in each round, by the loss on records that are not private."""

    data: Path = Field(
        description="File of records to choose by: public or the coordinator's own, with columns"
        " as in [data], and not those of [evaluation]."
    )
    rates: tuple[Annotated[float, Field(gt=0, le=MAX_RATE)], ...] = Field(
        (1.0,), min_length=1, description="Multiples of the learning rate to choose from."
    )
    share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="How much choosing may add to a round's work, as a share, by count of records.",
    )

    @field_validator("rates")
    @classmethod
    def _distinct(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a rate comes twice")
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


class ComputeSection(Section):
    """How and on what the work is done. It changes no claim."""

    device: str = Field("auto", description="Where the model is: auto, cpu, cuda or cuda:N.")
    dtype: Literal["auto", "float32", "mixed", "bfloat16", "float64"] = Field(
        "float32",
        description="Number format of the model. With mixed, products with frozen weights are in"
        " bfloat16 and all else in float32; with bfloat16, all but what is trained is in it. With"
        " auto, a job is computed in mixed where a short trial finds that faster and as exact"
        " ([models](models.md#auto)), else in float32.",
    )
    microbatch: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Private records that are computed at once, at most. Without it, 4, or 32 on a"
        " GPU.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="Compute layers twice instead of keeping what they made: less memory, more"
        " time.",
    )
    devices: int = Field(
        1,
        ge=1,
        le=64,
        description="GPUs of a site that share each step, from `device` on; on a CPU, processes.",
    )
    gpus_per_site: float | None = Field(
        None,
        gt=0,
        description="With job.engine = ray only: how many GPUs a site gets while it computes, such"
        " as 0.5. Without it, an equal share.",
    )
    engine: Literal["fedpriv", "opacus"] = Field(
        "fedpriv",
        description="Which library computes the gradient of each record; opacus is slower and"
        " knows more kinds of layers.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Sites of a simulation that compute at once; threads share one base, processes"
        " have a copy each."
        " Without it, one, or on a CPU as many as there are cores while the copies are small.",
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

    @property
    def is_tried(self) -> bool:
        """Whether what `dtype` gains or costs depends on the machine."""
        return self.dtype not in ("float32", "float64")

    def not_beside_quantised(self) -> tuple[str, Any, Sequence[str]] | None:
        """The first key, its value and the ones it may have, that can't read quantised weights."""
        for key, known in BESIDE_QUANTISED.items():
            if getattr(self, key) not in known:
                return key, getattr(self, key), known
        return None


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
    gate: GateSection | None = None
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
        gate = {} if self.gate is None else {"gate.data": self.gate.data}
        if self.controller is not None and self.controller.data is not None:
            gate["controller.data"] = self.controller.data
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


def seconds(duration: str) -> float:
    """Seconds of a duration such as ``"90s"``, ``"10m"`` or ``"2h"``.

    Raises:
        ValueError: it is not a number followed by s, m or h.
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smh])", duration)
    if match is None or float(match[1]) == 0:
        raise ValueError("expected a positive number followed by s, m or h, such as 10m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]
