"""What a federation file leaves out is filled in from the table of defaults."""

from __future__ import annotations

from pathlib import Path

from fedpriv.base_model import parameters_of
from fedpriv.config.job import JobConfig
from fedpriv.defaults import KEYS, defaults_for
from fedpriv.errors import ConfigError


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
    labels = job.model.task == "classification"
    found = defaults_for(labels, parameters, job.privacy.epsilon)
    row = {key: getattr(found, key) for key in KEYS}
    if "r" not in missing:  # the scale of the update, alpha / r, is what was measured
        row["alpha"] *= job.lora.r / row["r"]
    sections = {}
    for table in {KEYS[key] for key in missing}:
        left_out = {key: row[key] for key in missing if KEYS[key] == table}
        sections[table] = getattr(job, table).model_copy(update=left_out)
    return job.model_copy(update=sections)
