"""Check that what is called public is no record of a site, before a loss is computed on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.config.load import OF_SITES
from fedpriv.config.sources import Source
from fedpriv.data.identity import whole_record
from fedpriv.data.read import read_records
from fedpriv.data.transform import transformed
from fedpriv.errors import ConfigError
from fedpriv.files import sha256
from fedpriv.personal.held_out_checks import check_copies
from fedpriv_client.site_settings import cache_folder
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_server.run_directory import private_site_folder


def check_public(config: JobConfig, run: Path, source: Path) -> None:
    """Refuse public records that are also a site's, in whatever file and format they are.

    Paths and links were compared when the file was read. This compares what the records hold, apart
    from white space and labels. Only a simulation can do that, because it has the records of all
    sites. Where all data is public, it refuses evaluation records that are copies of training
    records.

    Args:
        run: run directory. Records are read in a site's own folder there, and nothing is left.
        source: the federation file, named in messages.

    Raises:
        ConfigError: some records are a site's. The person who runs the simulation is told how many.
        DataError: records can't be read; or all are public, and too many are copies.

    Privacy:
        A loss on private records would be a release that nobody paid for.
    """
    if config.job.data_is_public:
        cache = cache_folder(private_site_folder(run, config.sites[0].name))
        try:
            parts = (read_site(site, spec_of(config), cache).as_read[0] for site in config.sites)
            training = [sha256(one) for part in parts for one in map(whole_record, part) if one]
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        for key, path in config.evaluation.files().items():
            judged = [*_digests(config, path, cache, key)][: config.evaluation.limit]
            check_copies(training, judged, key=key)
        return
    public: dict[str, list[str]] = {}  # digests of each file's records
    for key, path in config.files().items():
        if not key.startswith(OF_SITES):
            cache = cache_folder(private_site_folder(run, config.sites[0].name))
            public[key] = list(_digests(config, path, cache, key))
    # Digest of a public record → the site that has it, too.
    held = {digest: "" for found in public.values() for digest in found}
    for site in config.everybody:
        assert site.records is not None
        cache = cache_folder(private_site_folder(run, site.name))
        own = {"data": site.records}
        if isinstance(site.held_out, Path):
            own["held_out"] = site.held_out
        for name, data in own.items():
            key, through = f"{site.table}.{site.name}.{name}", site.transform
            for digest in _digests(config, data, cache, key, through):
                if held.get(digest) == "":
                    held[digest] = site.name
    for key, found in public.items():
        if owners := sorted({held[digest] for digest in found} - {""}):
            count = sum(held[digest] != "" for digest in found)
            held_too = f"holds {count} of {len(found)} records that are also those of"
            why = "a loss on private records would be a release that nobody paid for"
            problem, value = f"{held_too} {', '.join(owners)}; {why}", str(config.files()[key])
            fix = "Take them out, or name public records, or the coordinator's own."
            raise ConfigError(problem, file=source, key=key, value=value, fix=fix)


def _digests(
    config: JobConfig, data: Source, cache: Path, key: str, through: str | None = None
) -> Iterator[str]:
    """Give each record's digests: as it was read, and as the site's own function returned it."""
    try:
        records = read_records(data, config.data.columns, unit="record", cache_dir=cache, key=key)
        known = [records]
        if through is not None:
            named, rows = f"{key.rpartition('.')[0]}.transform", range(1, len(records) + 1)
            known.append(transformed(records, rows, through, cache, named))
        contents = (whole_record(record) for part in known for record in part)
        yield from (sha256(content) for content in contents if content)
    finally:
        shutil.rmtree(cache, ignore_errors=True)
