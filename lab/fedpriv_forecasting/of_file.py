"""Forecast from a federation file: `fedpriv.forecast`, and what `fedpriv forecast` shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import InstanceOf

from fedpriv.arguments import PathName, checked
from fedpriv.config.job import JobConfig
from fedpriv.config.load import check_no_overrides, load_job
from fedpriv.errors import naming
from fedpriv_forecasting.advice import Forecast
from fedpriv_forecasting.advice import forecast as expected
from fedpriv_forecasting.federation import Federation, federation_of
from fedpriv_forecasting.table import SHIPPED, read_table


@checked
def forecast(
    job: InstanceOf[JobConfig] | PathName,
    overrides: Sequence[str] = (),
    *,
    sizes: Sequence[str] = (),
    table: PathName | None = None,
    kind: str | None = None,
) -> Forecast:
    """Forecast, before any ε is spent, whether joining pays, and what would change it.

    Args:
        job: a federation file, or a job that `load_job` made of one.
        overrides: ``a.b=value`` texts for the keys of a file. A job takes none.
        sizes: declared units of sites for which the job has none: ``250``, or ``NAME=250``.
        table: measured runs. The default is the shipped table.
        kind: the kind of measured records most like yours. The default is the nearest of the task.

    Raises:
        ConfigError: a setting or a table can't be used.

    Privacy:
        Reads settings and measured runs, and no record.
    """
    return read_and_forecast(job, overrides, sizes=sizes, table=table, kind=kind)[2]


def read_and_forecast(
    job: JobConfig | Path | str,
    overrides: Sequence[str],
    *,
    sizes: Sequence[str],
    table: Path | str | None,
    kind: str | None,
) -> tuple[JobConfig, Federation, Forecast]:
    """Forecast as `forecast` does, and return also the job and its public facts."""
    if isinstance(job, JobConfig):
        check_no_overrides(overrides)
        config, source = job, Path(job.job.name)
    else:
        config, source = load_job(Path(job), overrides), Path(job)
    with naming(source):
        federation = federation_of(config, sizes)
    path = None if table is None else Path(table)
    measured = read_table(path)
    with naming(path or SHIPPED):
        return config, federation, expected(config, federation, measured, kind)
