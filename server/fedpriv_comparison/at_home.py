"""What a model is worth to each site: on its own held-out records, as it is or trained further."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedpriv.config.job import JobConfig
from fedpriv.data import DataSpec, Example, encode_record
from fedpriv.data.held_out import VALIDATION, is_apart, read_own
from fedpriv.models.vector import Vector
from fedpriv.personal.forms import personalise
from fedpriv.training.scores import Scores, score
from fedpriv.training.worker import Worker

TUNING, TUNING_SHARE = "tuning", 0.5  # of the held-out units: settings are chosen by them
Model = Callable[[Sequence[Example]], Scores]  # scores records
Home = dict[str, float]


@dataclass(frozen=True)
class OwnExamples:
    """The records of one site as examples, each unit in one part.

    Attributes:
        training, validation: what its own training learns from, and stops by.
        reported, tuning: of the held-out units, to report on and to choose settings by.
    """

    training: list[Example]
    validation: list[Example]
    reported: list[Example]
    tuning: list[Example]


def own_examples(config: JobConfig, worker: Worker) -> dict[str, OwnExamples]:
    """Of every site that keeps records apart."""
    spec = DataSpec.of(
        config.data.columns,
        config.model,
        unit=config.privacy.unit,
        max_records_per_unit=config.privacy.max_records_per_unit,
    )
    found = {}
    for site in config.sites:
        if site.held_out is None:
            continue
        assert site.data is not None
        with tempfile.TemporaryDirectory() as cache:
            own = read_own(
                site.data,
                site.held_out,
                spec.columns,
                unit=spec.unit,
                labels=spec.labels,
                cache_dir=Path(cache),
                key=f"sites.{site.name}.data",
            )
            share = config.personal.validation
            training, validation = _parted(own.training, spec, worker, share, VALIDATION)
            reported, tuning = _parted(own.held_out, spec, worker, TUNING_SHARE, TUNING)
        found[site.name] = OwnExamples(training, validation, reported, tuning)
    return found


def _parted(
    records: Sequence[Mapping[str, str]],
    spec: DataSpec,
    worker: Worker,
    share: float,
    purpose: str,
) -> tuple[list[Example], list[Example]]:
    """The examples of the records, and those of the units that are kept apart for a purpose."""
    parts: tuple[list[Example], list[Example]] = [], []
    for row, record in enumerate(records, 1):
        examples = encode_record(record, spec, worker.base.tokenizer, row=row, source="")
        parts[is_apart(record, spec.unit, share, purpose)].extend(examples)
    return parts


def as_it_is(worker: Worker, values: Vector) -> Model:
    """A model with these trained values (P,)."""
    return lambda examples: score(worker, examples, values)


def trained_further(
    config: JobConfig, worker: Worker, values: Vector, own: OwnExamples, seed: int
) -> Model:
    """What a site makes of a model by training on its own records, without noise."""
    records, validation = own.training, own.validation
    return personalise(worker, values, records, validation, config.personal, seed=seed)


def home_scores(model: Model, own: OwnExamples) -> Home:
    """On the site's held-out records, and the loss on those to choose settings by."""
    return {**model(own.reported).as_dict(), "tuning_loss": model(own.tuning).eval_loss}
