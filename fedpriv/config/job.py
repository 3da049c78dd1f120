"""The federation file: one job, as the coordinator proposes it.

Every class is a table of the TOML file, every field a key; the description beside a field
is its documentation. Paths are relative to the file and are made absolute when it is read.
What the server proposes here is never an order: each site checks it against its own limits
before it reads a record.

The defaults of `lora.r`, `lora.alpha`, `privacy.clip_norm`, `privacy.sample_rate` and
`optimizer.lr` depend on the model's task and size. If a file leaves them out, `load_job` takes them
from the table in `fedpriv.defaults`. A section that is made in Python knows no model, and has those
of a language model of any size. `scripts/make_config_reference.py` makes
docs/reference/configuration.md of the descriptions here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, JsonValue, model_validator

from fedpriv.config.evaluation import EvaluationSection
from fedpriv.config.personal import PersonalSection
from fedpriv.config.run import JobSection, check_engine, check_movers, check_quantised, check_steps
from fedpriv.config.server import ServerSection
from fedpriv.config.sites import (
    OutsideSection,
    SiteRecords,
    SiteSection,
    check_delta,
    check_described,
    check_looks,
    check_names,
    check_outside,
)
from fedpriv.config.statement import StatementSection
from fedpriv.config.tracking import TrackingSection
from fedpriv.config.trust import check_trust, usual_max_colluding
from fedpriv.data.config import DataSection
from fedpriv.models.config import LoraSection, ModelSection
from fedpriv.privacy.config import PrivacySection
from fedpriv.private_training.config import ComputeSection
from fedpriv.public_update.config import (
    DenoiseSection,
    OptimizerSection,
    ServerOptimizerSection,
)
from fedpriv.section import Section
from fedpriv.synthetic.config import SyntheticSection

# Keys that are gone, and the value with which they had no effect.
GONE: dict[str, Any] = {
    "gate": None,
    "controller": None,
    "evaluation.hardest": 0,
    "synthetic.fold": 2,
    "synthetic.selection_temperature": 1.0,
    "synthetic.generator.answers": None,
    "synthetic.generator.keep": [0.25, 0.75],
    "synthetic.generator.label_prior": {},
}


class JobConfig(Section):
    """A whole federation file."""

    later: ClassVar[tuple[str, ...]] = ("statement", "outside")
    job: JobSection
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    lora: LoraSection = LoraSection()
    privacy: PrivacySection = PrivacySection()
    optimizer: OptimizerSection = OptimizerSection()
    server_optimizer: ServerOptimizerSection | None = None
    denoise: DenoiseSection = DenoiseSection()
    synthetic: SyntheticSection | None = None
    method: dict[str, JsonValue] = Field(
        {}, description="Settings of a method from another package, which checks them."
    )
    statement: StatementSection | None = None
    evaluation: EvaluationSection
    personal: PersonalSection = PersonalSection()
    compute: ComputeSection = ComputeSection()
    tracking: TrackingSection = TrackingSection()
    server: ServerSection | None = None
    sites: tuple[SiteSection, ...] = Field(min_length=1)
    outside: tuple[OutsideSection, ...] = ()

    def __repr__(self) -> str:
        job, privacy = self.job, self.privacy
        return (
            f"JobConfig({job.name!r}, {job.method} with {self.model.name!r}, {job.rounds} rounds,"
            f" {len(self.sites)} sites, epsilon={privacy.epsilon:g}, delta={privacy.delta:g})"
        )

    __str__ = __repr__

    @property
    def everybody(self) -> tuple[SiteRecords, ...]:
        """The sites that take part, and those that don't."""
        return (*self.sites, *self.outside)

    @property
    def steps(self) -> int:
        """The private steps of each site that train, in the whole job."""
        return self.job.steps

    @property
    def slots(self) -> int:
        """The private steps of each site in the whole job, with spare ones and those of looks."""
        looks = self.evaluation.sites
        return self.steps + self.privacy.spare_slots + (0 if looks is None else looks.steps)

    @property
    def max_colluding(self) -> int | None:
        """The number of a secure sum's sites that may collude; None if each adds all its noise."""
        if self.privacy.trust == "local":
            return None
        stated = self.privacy.max_colluding
        return usual_max_colluding(len(self.sites)) if stated is None else stated

    def files(self) -> dict[str, Path]:
        """Return the files and folders of records, by key, without data sets at a hub."""
        parts = (*self.everybody, self.evaluation, self.synthetic)
        found = [part.files() for part in parts if part is not None]
        return {key: path for files in found for key, path in files.items()}

    @model_validator(mode="before")
    @classmethod
    def _of_older_runs(cls, value: Any) -> Any:
        """Drop keys that no longer exist, if an older run's record has them without an effect."""
        return without_gone(value)

    @model_validator(mode="after")
    def _consistent(self) -> JobConfig:
        job, looks, privacy, denoise = self.job, self.evaluation.sites, self.privacy, self.denoise
        network = job.engine == "network"
        check_names(self.sites, job.min_sites)
        self.data.check_task(self.model.task)
        check_steps(job, self.slots, looks)
        check_movers(job.sync, denoise, self.server_optimizer)
        check_looks(self.sites, looks, rounds=job.rounds, network=network, delta=privacy.delta)
        check_engine(job, self.compute)
        if network and self.server is None:
            raise ValueError("server: is missing; engine 'network' needs its address")
        check_described(self.sites, network=network)
        check_outside(self.outside, self.sites, network=network)
        if self.model.quantize is not None:
            check_quantised(self.compute)
        check_trust(privacy, job, self.sites, denoise=denoise.where, looks=looks is not None)
        check_delta(self.sites, privacy.delta)
        return self


def without_gone(value: Any) -> Any:
    """Return a run's record of its settings, without keys of `GONE` that had no effect."""
    for key, without_effect in GONE.items():
        value = _without(value, key.split("."), without_effect)
    return value


def _without(table: Any, keys: list[str], value: object) -> Any:
    """Return a table without a nested key, if that has this value."""
    key, *deeper = keys
    if not isinstance(table, dict) or key not in table:
        return table
    if deeper:
        return {**table, key: _without(table[key], deeper, value)}
    return {name: kept for name, kept in table.items() if name != key or kept != value}
