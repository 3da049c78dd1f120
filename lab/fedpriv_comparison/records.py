"""Give the same records to others: all to one party, or each site's to itself."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from fedpriv.config.job import JobConfig
from fedpriv.config.load import config_error
from fedpriv.config.sites import OutsideSection, SiteSection
from fedpriv_server.own_records import read_site, spec_of, written_columns


def alone(config: JobConfig, name: str) -> JobConfig:
    """Return the federation that consists of one of the sites."""
    (site,) = (site for site in config.sites if site.name == name)
    return _with_sites(config, (site,))


def outside_in_turn(config: JobConfig) -> JobConfig:
    """Return the job with every site also as an outside site, to check that each can be one."""
    return config.model_copy(update={"outside": tuple(map(_outside, config.sites))})


def without(config: JobConfig, name: str) -> JobConfig:
    """Return the federation of all other sites. The named site becomes an outside site."""
    others = tuple(site for site in config.sites if site.name != name)
    (gone,) = (site for site in config.sites if site.name == name)
    return _with_sites(config, others, (_outside(gone),))


def _outside(site: SiteSection) -> OutsideSection:
    return OutsideSection(**{key: getattr(site, key) for key in OutsideSection.model_fields})


def pooled(config: JobConfig, folder: Path) -> JobConfig:
    """Return a federation of one party, with all sites' training records in a file in `folder`.

    Units with one id at several sites are one unit here. The party's ε is the least ε of all sites.
    """
    path, spec = folder / "pooled.jsonl", spec_of(config)
    with path.open("w", encoding="utf-8") as stream:
        for site in config.sites:
            own = read_site(site, spec, folder / "cache")
            for record in own.training:
                row = {column: record[field] for field, column in written_columns(spec).items()}
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    size = sum(site.size or 0 for site in config.sites)
    epsilons = [site.epsilon for site in config.sites if site.epsilon is not None]
    site = SiteSection(name="pooled", data=path, size=size, epsilon=min(epsilons, default=None))
    return _with_sites(config, (site,))


def _with_sites(
    config: JobConfig, sites: tuple[SiteSection, ...], outside: tuple[OutsideSection, ...] = ()
) -> JobConfig:
    """Return the same job with other sites, checked as a file is.

    Raises:
        ConfigError: a setting that was right for the former sites is wrong for these.
    """
    job = config.job.model_copy(update={"min_sites": 1})
    changed = config.model_copy(update={"job": job, "sites": sites, "outside": outside})
    try:
        return JobConfig.model_validate(changed.model_dump())
    except ValidationError as error:
        raise config_error(error, Path(sites[0].name), JobConfig) from None
