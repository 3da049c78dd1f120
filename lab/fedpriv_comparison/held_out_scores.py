"""Score what a model is worth to each site, on the site's own held-out records."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.config.job import JobConfig
from fedpriv.config.sites import SiteRecords
from fedpriv.data.encode import Example
from fedpriv.data.held_out import OwnRecords
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError
from fedpriv.models.vector import Vector
from fedpriv.personal.held_out_checks import check_copies, check_held_out
from fedpriv.personal.records import OwnParts, to_train_on
from fedpriv.personal.records import own_examples as records_of
from fedpriv.personal.together import Model
from fedpriv.plain_training.scores import score
from fedpriv.private_training.worker import Worker
from fedpriv_comparison.public_training import load
from fedpriv_server.own_records import read_site, spec_of

TUNING = "tuning"  # half of the held-out units, by which settings are chosen
Home = dict[str, float]


@dataclass(frozen=True)
class OwnExamples:
    """Hold the records of one site as examples. Each unit is in one part.

    Attributes:
        training: examples for the site's own training, and for its choices.
        reported, tuning: examples of the held-out units, to report on and to choose settings by.
    """

    training: OwnParts
    reported: list[Example]
    tuning: list[Example]


def own_examples(config: JobConfig, worker: Worker) -> dict[str, OwnExamples]:
    """Read the own examples of every site that keeps records apart."""
    spec, tokenizer = spec_of(config), worker.base.tokenizer
    found = {}
    for site in config.sites:
        if site.held_out is not None:
            with tempfile.TemporaryDirectory() as cache:
                own = read_site(site, spec, Path(cache))
                training = to_train_on(own, spec, tokenizer, config.personal)
                found[site.name] = OwnExamples(training, *halves(site, own, spec, tokenizer))
    return found


def halves(
    site: SiteRecords, own: OwnRecords, spec: DataSpec, tokenizer: Any
) -> tuple[list[Example], list[Example]]:
    """Return the examples of a site's held-out units: to report on, and to choose settings by.

    Raises:
        DataError: one of the two has no examples.
    """
    reported, tuning = records_of(own.held_out, spec, tokenizer, parts=2, purpose=TUNING)
    if not (reported and tuning):
        two = f"{len(reported)} examples to report on and {len(tuning)} to choose settings by"
        key, fix = f"{site.table}.{site.name}.held_out", "Hold out more records."
        raise DataError(f"holds {two}", key=key, value=site.held_out, fix=fix)
    return reported, tuning


def check_records(config: JobConfig, worker: Worker) -> None:
    """Check, before hours of training, that the records that judge models are fit for it.

    Raises:
        DataError: held-out records of sites or of the evaluation were trained on, or are from
            another data set; or as for `own_examples`.
    """
    tokenizer = worker.base.tokenizer
    populations, reported, tuning = load(config, worker)
    trained = [e for population in populations.values() for unit in population.units for e in unit]
    everywhere = [str(example.input_ids) for example in trained]
    for name, own in own_examples(config, worker).items():
        held_out = [*own.reported, *own.tuning]
        key = f"sites.{name}.held_out"
        check_held_out(own.training.everything, held_out, tokenizer, key=key)
        check_copies(everywhere, [str(example.input_ids) for example in held_out], key=key)
    check_held_out(trained, [*reported, *tuning], tokenizer, key="evaluation.data")


def as_it_is(worker: Worker, values: Vector) -> Model:
    """Return the model with the trained values (P,), as a function of examples."""
    return lambda examples: score(worker, examples, values)


def home_scores(model: Model, reported: Sequence[Example], tuning: Sequence[Example]) -> Home:
    """Score a model on a site's held-out records, and add its loss on the tuning records."""
    return {**model(reported).as_dict(), "tuning_loss": model(tuning).eval_loss}
