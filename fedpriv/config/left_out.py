"""What a federation file leaves out is filled in from the table of defaults."""

from __future__ import annotations

from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.defaults import KEYS, defaults_for
from fedpriv.errors import ConfigError
from fedpriv.model_size import parameters_of
from fedpriv.models.config import LoraSection
from fedpriv.stored_adapter import find_adapter


def with_defaults(job: JobConfig) -> JobConfig:
    """Fill in every setting of the table that a job's file left out.

    Raises:
        ConfigError: the model's size can't be told, or the rate is for another optimiser; or the
            adapter that the job begins at is not as the file says, or can't be used.
    """
    if job.model.begin is not None and job.model.begin_as == "continued":
        job = _as_it_began(job, find_adapter(job.model.begin).lora)
    given = {table: getattr(job, table).model_fields_set for table in KEYS.values()}
    missing = [key for key, table in KEYS.items() if key not in given[table]]
    if not missing:
        return job
    if "lr" in missing and job.optimizer.name == "sgd":
        fix = "The table of defaults has rates of adamw only: write one down."
        raise ConfigError("is missing", key="optimizer.lr", fix=fix)
    parameters = parameters_of(job.model.name)
    if parameters is None:
        names = ", ".join(f"{KEYS[key]}.{key}" for key in missing)
        raise ConfigError(
            "has no safetensors here or at the hub, and without its size there are no defaults",
            key="model.name",
            value=job.model.name,
            fix=f"Correct it, or write down {names}.",
        )
    found = defaults_for(job.model.task == "classification", parameters, job.privacy.epsilon)
    row = {key: getattr(found, key) for key in KEYS}
    if "r" not in missing:  # the scale of the update, alpha / r, is what was measured
        row["alpha"] *= job.lora.r / row["r"]
    left_out: dict[str, dict[str, Any]] = {}
    for key in missing:
        left_out.setdefault(KEYS[key], {})[key] = row[key]
    sections = {t: getattr(job, t).model_copy(update=keys) for t, keys in left_out.items()}
    return job.model_copy(update=sections)


def _as_it_began(job: JobConfig, found: LoraSection) -> JobConfig:
    """Give the job the shape of the adapter that it continues, which its file may repeat."""
    typed = {key: getattr(job.lora, key) for key in job.lora.model_fields_set}
    values = {key: value for key, value in found if key in found.model_fields_set}
    for key in values.keys() & typed.keys():
        is_other = typed[key] != values[key]
        if is_other and (key in KEYS or sorted(typed[key]) != sorted(values[key])):
            problem = f"is {values[key]} in the adapter that model.begin continues"
            fix = 'Leave it out; or merge that adapter, with model.begin_as = "merged".'
            raise ConfigError(problem, key=f"lora.{key}", value=typed[key], fix=fix)
    return job.model_copy(update={"lora": job.lora.model_copy(update=values)})
