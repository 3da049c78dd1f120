"""Which measured runs a job is like, and in what it is like none of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError
from fedpriv.forecasting.curve import Setting, measured_range
from fedpriv.forecasting.federation import Federation
from fedpriv.forecasting.table import Kind, Point, Table

FAR = 2.0  # rounds, rate or window other than measured by more than this factor


def typical(federation: Federation) -> Setting:
    """Where a federation is on the curve: the mean over its sites is at their geometric mean."""
    return Setting(federation.sites, federation.records, federation.noise, federation.warm_start)


def point_setting(point: Point) -> Setting:
    """Where a measured run is on the curve."""
    return Setting(point.sites, point.records, point.noise, point.warm_start)


def kind_for(job: JobConfig, federation: Federation, table: Table, wanted: str | None) -> str:
    """The kind of the job's task: of its model, or else with the nearest run; or what is wanted.

    Raises:
        ConfigError: the table has no such kind, or none of the task.
    """
    measured = [name for name in table.kinds if table.of(name)]
    if wanted is not None:
        if wanted in measured:
            return wanted
        known = ", ".join(measured)
        raise ConfigError("is no kind in it", key="--kind", value=wanted, fix=f"Use {known}.")
    fitting = [name for name in measured if table.kinds[name].task == job.model.task]
    if not fitting:
        raise ConfigError(
            "none has the task of the federation file",
            key="kinds",
            value=job.model.task,
            fix=f"Name the one that is nearest with --kind: {', '.join(measured)}.",
        )
    here = typical(federation)

    def far(name: str) -> tuple[bool, float]:
        settings = [point_setting(point) for point in table.of(name)]
        return not _same_model(job, table.kinds[name]), min(map(here.distance, settings))

    return min(fitting, key=far)


def _same_model(job: JobConfig, kind: Kind) -> bool:
    return kind.model is not None and (PurePath(job.model.name).name == PurePath(kind.model).name)


def unlike_measured(
    job: JobConfig, federation: Federation, kind: Kind, points: Sequence[Point], *, chosen: bool
) -> Iterator[str]:
    """What of a job no measured run had, in words.

    Args:
        chosen: somebody named the kind, and so answers for the model.
    """
    if not chosen and kind.model is not None and not _same_model(job, kind):
        yield f"model.name: {job.model.name}, and measured was {kind.model}"
    for key, value, measured in (
        ("job.method", job.job.method, "dp-lora"),
        ("job.sync", job.job.sync, 1),
        ("denoise.where", job.denoise.where, "off"),
        ("controller", "one" if job.controller is not None else "none", "none"),
        ("gate", "one" if job.gate is not None else "none", "none"),
    ):
        if value != measured:
            yield f"{key}: {value}, and measured was {measured}"
    yield from _far("model.max_length", job.model.max_length, [kind.tokens])
    yield from other_pace(federation, points)


def other_pace(federation: Federation, points: Sequence[Point]) -> Iterator[str]:
    """Whether rounds or rate are far from all that was measured, in words.

    The curve knows both through the noise alone, so they may differ by no more than `FAR`.
    """
    yield from _far("job.rounds", federation.rounds, [point.rounds for point in points])
    rates = [point.sample_rate for point in points]
    yield from _far("privacy.sample_rate", federation.sample_rate, rates)


def _far(key: str, amount: float, measured: Sequence[float]) -> Iterator[str]:
    if not min(measured) / FAR <= amount <= max(measured) * FAR:
        yield f"{key}: {amount:g}, and {measured_range(measured)}"
