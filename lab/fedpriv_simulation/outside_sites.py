"""Sites that take no part: check that their units are not inside, and score the adapter there.

A site's scores are on a page in its own private folder, as at a real site. Where all records are
public, they are also in run.json and the report.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fedpriv.adapter_facts import read_facts
from fedpriv.config.job import JobConfig
from fedpriv.config.sites import SiteRecords
from fedpriv.data.encode import Example
from fedpriv.data.held_out import unit_mark
from fedpriv.errors import ConfigError
from fedpriv.files import finite_json, private_folder
from fedpriv.methods.proposal import job_recipe
from fedpriv.personal.evaluation import Evaluation, evaluate
from fedpriv.personal.held_out_checks import COPIES
from fedpriv.personal.page import write_page
from fedpriv.personal.records import to_test_on
from fedpriv.plain_training.adapter import read_values
from fedpriv.private_training.pool import WorkerPool
from fedpriv_server.own_records import read_site, spec_of
from fedpriv_server.run_directory import RunDirectory, private_site_folder
from fedpriv_simulation.own_models import PAGE


@dataclass(frozen=True)
class Tested:
    """Hold what an outside site tests on: examples, the unit of each, and the number of records."""

    examples: Sequence[Example]
    units: Sequence[int]
    records: int


def check_apart(config: JobConfig, cache: Path) -> None:
    """Refuse units that are both at an outside site and at one that takes part.

    Where all data is public, a unit is a record, and short texts repeat. Then up to a tenth of an
    outside site's records may be elsewhere, too.

    Args:
        cache: folder where clear text may be written. Only its owner may read it.

    Raises:
        ConfigError: some units are at both. The person who runs the simulation is told how many,
            never which.
        DataError: records can't be read.
    """
    if not config.outside:
        return
    held = {site.name: set(_units(config, site, cache)) for site in config.everybody}
    share = COPIES if config.job.data_is_public else 0.0
    for site, inside in product(config.outside, config.sites):
        units = held[site.name]
        count = len(units & held[inside.name])
        if site.name != inside.name and count > share * len(units):
            held_too = f"holds {count} of {len(units)} units that are also at {inside.name}"
            problem = f"{held_too}, which takes part: a model knows them already"
            fix = "Take them out of one of the two."
            raise ConfigError(problem, key=f"outside.{site.name}.data", fix=fix)


def _units(config: JobConfig, site: SiteRecords, cache: Path) -> Iterator[bytes]:
    """Give a digest of each unit of a site, held out or not."""
    spec = spec_of(config)
    unit = "record" if config.job.data_is_public else spec.unit
    for part in read_site(site, spec, cache).as_read:
        yield from (mark for record in part if (mark := unit_mark(record, unit)))


def read_outside(config: JobConfig, run: RunDirectory, pool: WorkerPool) -> dict[str, Tested]:
    """Read what each outside site tests on, before anything is spent.

    Raises:
        ConfigError: as for `check_apart`.
        DataError: a site has nothing to test on.

    Privacy:
        Private throughout. Clear text is in the run's private folder while it is read.
    """
    found: dict[str, Tested] = {}
    if not config.outside:
        return found
    spec = spec_of(config)
    with (
        tempfile.TemporaryDirectory(dir=private_folder(run.private_folder)) as cache,
        pool.borrow(job_recipe(config)) as worker,
    ):
        check_apart(config, Path(cache))
        for site in config.outside:
            own = read_site(site, spec, Path(cache))
            key, records = f"outside.{site.name}.held_out", own.held_out
            if site.held_out is None:
                key, records = f"outside.{site.name}.data", own.training
            examples, units = to_test_on(records, spec, worker.base.tokenizer, key=key)
            found[site.name] = Tested(examples, units, len(records))
    return found


def score_outside(
    config: JobConfig, run: RunDirectory, outside: Mapping[str, Tested], pool: WorkerPool
) -> dict[str, Evaluation]:
    """Test the base model and a finished run's adapter at each outside site.

    Privacy:
        None: computed on raw records. Each site's page is in its private folder. The run tells its
        coordinator, too, but only where all data is public (law 16).
    """
    found = {}
    for name, tested in outside.items():
        with pool.borrow(job_recipe(config)) as worker:
            facts = read_facts(run.path / "adapter")
            adapter = read_values(run.path / "adapter", worker, facts)
            found[name] = evaluate(
                worker,
                tested.examples,
                {"base": worker.initial, "federated": adapter},
                spec_of(config),
                units=tested.units,
                site=name,
                job=facts.job,
                records=tested.records,
                beside=config.personal.beside,
                served={},
                trained={},
                notes=["This site took no part in the federation."],
            )
        write_page(found[name], private_folder(private_site_folder(run.path, name)) / PAGE)
    if found and config.job.data_is_public:
        run.keep_outside(finite_json({name: one.as_dict() for name, one in found.items()}))
    return found
