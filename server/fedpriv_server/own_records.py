"""Read the records of sites as a federation file describes them."""

from __future__ import annotations

from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.config.sites import SiteRecords
from fedpriv.data.held_out import OwnRecords, read_own
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec


def spec_of(config: JobConfig) -> DataSpec:
    """Return the settings by which the records of every site are prepared."""
    unit, most = config.privacy.unit, config.privacy.max_records_per_unit
    columns = config.data.columns
    return DataSpec.of(columns, config.model, unit=unit, max_records_per_unit=most)


def written_columns(spec: DataSpec) -> dict[str, str]:
    """Return field → column for records that are written anew, including the unit's id."""
    return {**spec.columns, **({} if spec.unit == "record" else {UNIT: spec.unit})}


def read_site(site: SiteRecords, spec: DataSpec, cache: Path) -> OwnRecords:
    """Read the records of a site. Its held-out records are kept apart.

    Args:
        cache: where clear text may be written.

    Raises:
        DataError: see `read_own`.
    """
    assert site.records is not None  # checked when the file was read
    return read_own(
        site.records,
        site.held_out,
        spec,
        cache_dir=cache,
        key=f"{site.table}.{site.name}.data",
        transform=site.transform,
    )
