"""Turn records in memory into units of examples."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.config import SHAPES
from fedpriv.data.encode import Example, check_label, encode_record
from fedpriv.data.identity import identities, whole_record
from fedpriv.data.in_memory import IN_MEMORY, KEY, Records, take_records
from fedpriv.data.population import Population, encode_population
from fedpriv.data.spec import DataSpec
from fedpriv.data.store import TokenFile
from fedpriv.errors import ConfigError, DataError
from fedpriv.files import sha256
from fedpriv.models.config import ModelSection
from fedpriv.privacy import usual
from fedpriv.privacy.ledger.unit_index import Identity

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)
Claim = Callable[[Iterable[Sequence[Identity]]], None]


def spec_of(
    columns: Mapping[str, str], model: ModelSection, unit: str, max_records_per_unit: int
) -> DataSpec:
    """Return how records become examples.

    Raises:
        ConfigError: the columns are not those of the model's task.
    """
    allowed = SHAPES[model.task]
    if set(columns) not in allowed:
        shapes = " or ".join(" and ".join(sorted(shape)) for shape in allowed)
        raise ConfigError(
            f"are not those of a model for {model.task}",
            key="columns",
            value=dict(columns),
            fix=f"Such a model is trained on {shapes}."
            + (" If it is a classifier, name its labels." if "label" in columns else ""),
        )
    return DataSpec.of(columns, model, unit=unit, max_records_per_unit=max_records_per_unit)


def own_units(
    records: Records,
    spec: DataSpec,
    tokenizer: Any,
    claim: Claim | None = None,
    max_empty: float = usual.MAX_EMPTY,
) -> tuple[Population, frozenset[str]]:
    """Read a site's records as units. No clear text of them is left on the disk.

    Args:
        claim: called with the units' identities, by which another ledger would know them, once
            the records can be used.
        max_empty: the largest share of the records that may give no example.

    Returns:
        The population to sample from, and digests of whole records, to check that others are not
        among them.

    Raises:
        DataError: the records can't be read or kept, one has a label that is not declared, or too
            few give an example. The error names rows and never what they hold.
        FedprivError: any error that `claim` raises.

    Privacy:
        A map over single units by public settings; see `encode_population`. All of it is private.
    """
    with _read(records, spec, spec.unit) as (rows, folder):
        population = encode_population(rows, spec, tokenizer, TokenFile(folder))
        if population.problem is not None:
            problem = f"is too full for the tokens of the records ({population.problem.strerror})"
            fix = "Free some of this disk, or name another in TMPDIR."
            raise DataError(problem, file=folder.parent, fix=fix)
        population.tally.check(max_empty, key=KEY, limit="max_empty")
        level = logging.WARNING if population.tally.without else logging.INFO
        log.log(level, "%s", population.tally.told)
        if claim is not None:
            claim(identities(row, spec.unit) for row in rows)
        return population, frozenset(_digests(rows))


def public_examples(
    records: Records, spec: DataSpec, tokenizer: Any, private: frozenset[str]
) -> list[Example]:
    """Make examples from records that are said to be public, to measure a model with them.

    Args:
        private: digests of the site's own records.

    Raises:
        DataError: some are the site's own records, or there is nothing to measure.
    """
    with _read(records, spec, "record") as (rows, _):  # to whom a record belongs plays no part
        own = sum(digest in private for digest in _digests(rows))
        if own:
            raise DataError(
                f"{own} of {len(rows)} records are also among those that train; a loss on private"
                " records would be a release that nobody paid for",
                key="evaluation",
                fix="Take them out, or use public records.",
            )
        examples = [
            example
            for number, row in enumerate(rows, 1)
            for example in encode_record(row, spec, tokenizer, row=number, source=IN_MEMORY)
        ]
    if not examples:
        raise DataError(
            "has nothing to evaluate: no record has a token to predict", key="evaluation"
        )
    return examples


def _digests(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (sha256(content) for content in map(whole_record, rows) if content)


@contextmanager
def _read(records: Records, spec: DataSpec, unit: str) -> Iterator[tuple[datasets.Dataset, Path]]:
    """Yield the rows and their own folder (0700), which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="fedpriv-") as name:
        rows = take_records(records, spec.columns, unit=unit, cache_dir=Path(name), key=KEY)
        if "label" in spec.columns:
            for number, row in enumerate(rows, 1):
                check_label(row, spec.labels, row=number, source=IN_MEMORY)
        yield rows, Path(name)
