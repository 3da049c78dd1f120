"""Sites that take no part: their test records, and the new site that each of them may become.

A new site begins at a trained model and trains on a few units of its own, without noise, as
`fedpriv-client personalise` would.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.config.personal import PersonalSection
from fedpriv.data.encode import Example
from fedpriv.data.held_out import OwnRecords, drawn_for
from fedpriv.data.spec import DataSpec
from fedpriv.errors import ConfigError, DataError
from fedpriv.models.vector import Vector
from fedpriv.names import OwnKind
from fedpriv.personal.records import to_train_on
from fedpriv.personal.training import train_alone
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.held_out_scores import halves
from fedpriv_server.own_records import read_site, spec_of

HELD_OUT = 0.5  # of the units of an outside site whose table names no share
FEW = 3  # passes, where too few units have a token to choose the number of passes by


@dataclass(frozen=True)
class OutsideSite:
    """Hold the records of a site that takes no part. Each unit is in one part.

    Attributes:
        records: the records from which a new site draws its units.
        reported, tuning: examples of the held-out units, to report on and to choose by.
    """

    records: OwnRecords
    reported: list[Example]
    tuning: list[Example]


def outside_examples(config: JobConfig, worker: Worker) -> dict[str, OutsideSite]:
    """Read every outside site. Half of its units are held out unless its table says otherwise.

    Raises:
        DataError: a site can't be read, or holds too few records out.
    """
    spec = spec_of(config)
    found = {}
    for named in config.outside:
        site = named.model_copy(update={"held_out": named.held_out or HELD_OUT})
        with tempfile.TemporaryDirectory() as cache:
            own = read_site(site, spec, Path(cache))
            found[site.name] = OutsideSite(own, *halves(site, own, spec, worker.base.tokenizer))
    return found


def check_counts(config: JobConfig, worker: Worker, counts: Sequence[int]) -> None:
    """Refuse more units of a new site than an outside site has, before anything is trained.

    Raises:
        ConfigError: names the site, and how many units it has.
        DataError: as for `outside_examples`.
    """
    unit = spec_of(config).unit
    for name, site in outside_examples(config, worker).items():
        units = {drawn_for(record, unit, "new site 0") for record in site.records.training}
        there = len(units - {1.0})
        if there < max(counts):
            asked, wanted = ",".join(map(str, counts)), f"asks for {max(counts)} units of {name}"
            problem = f"{wanted}, which has {there} beside those that it holds out"
            fix = "Ask for fewer, or name a file of held-out records there."
            raise ConfigError(problem, key="--new-sites", value=asked, fix=fix)


def draw(records: OwnRecords, count: int, unit: str, seed: int) -> OwnRecords:
    """Draw `count` units, the same for all models of a seed.

    A smaller draw is part of a larger one.

    Args:
        unit: the unit as `drawn_for` takes it. The units with its lowest numbers are drawn.
    """
    drawn = [drawn_for(record, unit, f"new site {seed}") for record in records.training]
    few = set(sorted(set(drawn) - {1.0})[:count])
    rows = [row for row, one in enumerate(drawn) if one in few]
    return replace(records, training=records.training.select(rows))


def new_site(
    worker: Worker,
    start: Vector,
    site: OutsideSite,
    count: int,
    settings: PersonalSection,
    *,
    spec: DataSpec,
    seed: int,
    kind: OwnKind,
) -> Vector:
    """Train from `start` (P,) on `count` units of a site. With 0 units, return `start` unchanged.

    Rate and passes are chosen by cross-validation on these units. If fewer than two parts have a
    token to predict, training makes `FEW` passes at the first rate.

    Args:
        seed: seed of the draw, and of the order of the records.
        kind: ``alone`` where the model has learned nothing yet, otherwise ``personal``.

    Raises:
        DataError: no unit has a token to predict.
    """
    if not count:
        return start
    own, tokenizer = draw(site.records, count, spec.unit, seed), worker.base.tokenizer
    try:
        parts = to_train_on(own, spec, tokenizer, settings)
    except DataError:
        few = {"validation": 0.0, "rates": settings.rates[:1], "epochs": FEW, "epochs_alone": None}
        settings = settings.model_copy(update=few)
        parts = to_train_on(own, spec, tokenizer, settings)
    return train_alone(worker, start, parts, settings.beginning(kind), seed=seed).values
