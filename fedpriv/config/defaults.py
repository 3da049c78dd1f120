"""Settings that a federation file leaves out: what did best for a model of that size.

Source: the tables of docs/results.md, each with its command.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpriv.base_model import parameters_of
from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.config.job import JobConfig


@dataclass(frozen=True)
class Defaults:
    """A row of the table.

    Attributes:
        parameters: of the base model, at most; None has no limit.
        epsilon: of the job, at least; the first row of a size serves all below, too.
        lr: of adamw.
        basis: what it rests on.
    """

    parameters: float | None
    epsilon: float
    clip_norm: float
    sample_rate: float
    r: int
    alpha: float
    lr: float
    basis: str


_MTSAMPLES = "clinical notes, four sites"
_SST2 = "SST-2, a sentence encoder"
_PUBLISHED = "others' published rates, not measured here"
TABLE = (  # ascending in size, and for each size in ε
    Defaults(10e6, 1.0, 0.1, 0.2, 4, 8.0, 2e-2, _MTSAMPLES),
    Defaults(50e6, 6.7, 10.0, 0.05, 16, 16.0, 5e-3, _SST2),
    Defaults(None, 4.0, 1.0, 0.05, 16, 16.0, 1e-3, _PUBLISHED),
)
ANY_SIZE = TABLE[-1]  # of a model whose size nobody knows: a section that is made in Python
# Where each setting stands in a federation file.
KEYS = {
    "clip_norm": "privacy",
    "sample_rate": "privacy",
    "r": "lora",
    "alpha": "lora",
    "lr": "optimizer",
}


def rows_for(epsilon: float) -> list[Defaults]:
    """The rows for a job of that ε, one for each size of a model, ascending."""
    found: dict[float | None, Defaults] = {}
    for row in TABLE:
        if row.parameters not in found or row.epsilon <= epsilon:
            found[row.parameters] = row
    return list(found.values())


def defaults_for(parameters: float, epsilon: float) -> Defaults:
    """The row for a base model of so many parameters and a job of that ε."""
    rows = rows_for(epsilon)
    return next(row for row in rows if row.parameters is None or parameters <= row.parameters)


def with_defaults(job: JobConfig, file: Path) -> JobConfig:
    """The job with every setting of the table that its file left out.

    Args:
        file: named in errors.

    Raises:
        ConfigError: the model's size can't be told, or the rate is for another optimiser.
    """
    given = {table: getattr(job, table).model_fields_set for table in KEYS.values()}
    missing = [key for key, table in KEYS.items() if key not in given[table]]
    if not missing:
        return job
    if "lr" in missing and job.optimizer.name == "sgd":
        raise ConfigError(
            "is missing",
            file=file,
            key="optimizer.lr",
            fix="The table of defaults has rates of adamw only: write one down.",
        )
    parameters = parameters_of(job.model.name)
    if parameters is None:
        names = ", ".join(f"{KEYS[key]}.{key}" for key in missing)
        raise ConfigError(
            "has no safetensors here or at the hub, and without its size there are no defaults",
            file=file,
            key="model.name",
            value=job.model.name,
            fix=f"Correct it, or write down {names}.",
        )
    row = asdict(defaults_for(parameters, job.privacy.epsilon))
    if "r" not in missing:  # the scale of the update, alpha / r, is what was measured
        row["alpha"] *= job.lora.r / row["r"]
    sections = {}
    for table in {KEYS[key] for key in missing}:
        left_out = {key: row[key] for key in missing if KEYS[key] == table}
        sections[table] = getattr(job, table).model_copy(update=left_out)
    return job.model_copy(update=sections)
