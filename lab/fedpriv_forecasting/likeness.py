"""Which measured runs a job is like, and in what it is like none of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import PurePath
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv_forecasting.curve import measured_range
from fedpriv_forecasting.federation import Federation
from fedpriv_forecasting.table import Kind, Point, Table, Unit

FAR = 2.0  # the factor beyond which a setting counts as other than measured
# The measured runs had the default of each key of these tables (and own training that is as good).
# Excepted are keys that decide nothing, are checked elsewhere, or go with the model, which a `Kind`
# states.
NOT_BY_DEFAULT = {
    "job": "name rounds average engine seed data_is_public min_sites round_timeout",
    "model": "name task labels max_length pooling",
    "lora": "r alpha",
    "privacy": "epsilon delta sample_rate clip_norm unit max_records_per_unit numerics trust"
    " max_colluding spare_slots roster",
    "optimizer": "lr",
    "denoise": "kappa norm",
    "personal": "",
}


def kind_for(job: JobConfig, federation: Federation, table: Table, wanted: str | None) -> str:
    """Choose the wanted kind, or one of the job's task.

    The choice goes by the model, then by the unit, then by the nearest run.

    Raises:
        ConfigError: the table has no such kind, or none of the task.
    """
    measured = [name for name in table.kinds if table.of(name)]
    if wanted is not None and wanted not in measured:
        known = ", ".join(measured)
        raise ConfigError(
            "is not a kind in the table", key="--kind", value=wanted, fix=f"Use {known}."
        )
    fitting = [name for name in measured if table.kinds[name].task == job.model.task]
    if not fitting:
        problem = "none has the task of the federation file"
        fix = "Name a table that has, with --table, such as benchmarks/joining.py writes."
        raise ConfigError(problem, key="kinds", value=job.model.task, fix=fix)
    if wanted is not None and wanted not in fitting:
        tasks = f"{table.kinds[wanted].task}, and the federation {job.model.task}"
        problem = f"has the task {tasks}: their losses can't be compared"
        raise ConfigError(problem, key="--kind", value=wanted, fix=f"Use {', '.join(fitting)}.")
    if wanted is not None:
        return wanted
    here = federation.setting

    def far(name: str) -> tuple[bool, bool, float]:
        distances = [here.distance(point.setting) for point in table.of(name)]
        of_unit = table.of(name, unit_of(job))
        return not same_model(job, table.kinds[name]), not of_unit, min(distances)

    return min(fitting, key=far)


def unit_of(job: JobConfig) -> Unit:
    """Return the unit of privacy: a record or a patient."""
    return "record" if job.privacy.unit == "record" else "patient"


def same_model(job: JobConfig, kind: Kind) -> bool:
    """Compare models by name.

    The name is the last part of a path that names any. Dashes and letter case don't count.
    """
    parts = [part for part in PurePath(job.model.name).parts if part != "model"]
    return _letters(parts[-1] if parts else "").endswith(_letters(kind.model))


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def unlike_measured(
    job: JobConfig, federation: Federation, kind: Kind, points: Sequence[Point]
) -> Iterator[str]:
    """Say what of a job no measured run had, except base model, unit and sizes.

    `fedpriv_forecasting.reading` accounts for these three with wider ranges.
    """
    if fields := ", ".join(field for field in job.data.columns if field not in ("text", "label")):
        yield f"data.columns: {fields}, but text was measured"
    if job.compute.dtype == "bfloat16":
        yield "compute.dtype: bfloat16, but float32 was measured"
    yield from _far("model.max_length", job.model.max_length, [kind.tokens])
    usual: dict[str, Any] = {
        f"{table}.{key}": field.default
        for table, others in NOT_BY_DEFAULT.items()
        for key, field in type(getattr(job, table)).model_fields.items()
        if key not in others.split()
    }
    for key, measured in (usual | kind.settings).items():
        value = setting_of(job, key)
        if key == "model.labels":
            value, measured = len(job.model.labels), len(measured)
        numbers = isinstance(value, int | float) and isinstance(measured, int | float)
        if numbers and key in kind.settings:
            yield from _far(key, value, [measured])
        elif key != "privacy.unit" and _shown(value) != _shown(measured):
            yield f"{key}: {_shown(value)}, but {_shown(measured)} was measured"
    yield from other_pace(federation, points)
    if len(set(federation.epsilons)) > 1:
        yield "sites.*.epsilon: several, but one for all sites was measured"


def setting_of(job: JobConfig, key: str) -> Any:
    """Return a federation file's value for the key ``table.key``."""
    return reduce(getattr, key.split("."), job)


def _shown(value: object) -> str:
    said = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return {"": "none", "None": "none", "True": "true", "False": "false"}.get(said, said)


def other_pace(federation: Federation, points: Sequence[Point]) -> Iterator[str]:
    """Say whether rounds or sample rate are far from all that was measured.

    The curve knows both through the noise alone. So they may differ by at most the factor `FAR`.
    """
    yield from _far("job.rounds", federation.rounds, [point.rounds for point in points])
    rates = [point.sample_rate for point in points]
    yield from _far("privacy.sample_rate", federation.sample_rate, rates)


def _far(key: str, amount: float, measured: Sequence[float]) -> Iterator[str]:
    if not min(measured) / FAR <= amount <= max(measured) * FAR:
        yield f"{key}: {amount:g}, but {measured_range(measured)}"
