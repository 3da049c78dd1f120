"""Choose which units a site keeps apart from training: by each unit alone, the same every time."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpriv.config.sources import Source, where
from fedpriv.data.identity import whole_record
from fedpriv.data.population import read_labelled
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec
from fedpriv.errors import DataError
from fedpriv.files import canonical_json
from fedpriv.plugins import load_part

if TYPE_CHECKING:
    import datasets

HELD_OUT, VALIDATION = "held-out", "validation"  # purposes for which a share may be kept apart


def is_apart(record: Mapping[str, Any], unit: str, share: float, purpose: str) -> bool:
    """Tell whether a record's unit belongs to the share that is kept apart for a purpose.

    All records of a patient fall on one side, and so do copies of a text. No unit moves another. An
    empty record trains.

    Args:
        record: a row of `read_records`.
        unit: ``record``, or the id column that the row's ``unit`` was read from.
        share: roughly what share of the units is kept apart, from 0 to 1.
        purpose: draws of several purposes are independent of each other.

    Privacy:
        A per-unit map by public settings (law 2), so that adding or removing a unit changes one
        side by that unit alone. The answer is private as the record is.
    """
    return drawn_for(record, unit, purpose) < share


def drawn_for(record: Mapping[str, Any], unit: str, purpose: str) -> float:
    """Return a number from 0 to 1 for a record's unit, always the same; 1 for an empty record.

    It is a hash of the unit's id, or of the record's texts where each record is a unit.
    """
    owner = _owner(record, unit)
    drawn = hashlib.sha256(purpose.encode() + b"\0" + owner).digest()[:8]
    return int.from_bytes(drawn) / 2**64 if owner else 1.0


def _owner(record: Mapping[str, Any], unit: str) -> bytes:
    """Return bytes that tell a record's unit from others; empty if there is neither text nor id."""
    return whole_record(record) if unit == "record" else canonical_json([record[UNIT]])


def unit_mark(record: Mapping[str, Any], unit: str) -> bytes | None:
    """Return a digest of what tells a record's unit from others; None for an empty record."""
    owner = _owner(record, unit)
    return hashlib.sha256(owner).digest() if owner else None


@dataclass(frozen=True)
class OwnRecords:
    """A site's records: those that train, and those kept apart to test models.

    Attributes:
        training: rows of `read_records`.
        rows: their numbers in the file, from 1, for messages.
        held_out: rows of other units; none if the site keeps none apart.
        as_read: both, before the site's own `transform`, if it has one. They identify a unit:
            a transform may make other texts of the same records the next time.
    """

    training: datasets.Dataset
    rows: Sequence[int]
    held_out: datasets.Dataset
    as_read: tuple[datasets.Dataset, datasets.Dataset]


def read_own(
    source: Source,
    held_out: Path | float | None,
    spec: DataSpec,
    *,
    cache_dir: Path,
    key: str,
    transform: str | None = None,
) -> OwnRecords:
    """Read a site's records in two parts.

    Args:
        held_out: a file of further records, or the share of the units of `source` to keep apart.
        source, spec, cache_dir: see `read_labelled`.
        key: the setting that named the source, such as ``data.path``; those of the held-out
            records and of the transform are ``held_out`` and ``transform`` of the same table.
        transform: what every text goes through; see `transformed`.

    Raises:
        DataError: see `read_labelled` and `transformed`; nothing is left to train on, nothing is
            held out though a share or a file is named, or a unit is in both files.

    Privacy:
        Reads every record, for the site's own administrator at its start; see `is_apart`.
    """
    table, unit = key.rpartition(".")[0], spec.unit
    asked = f"{table}.held_out"

    read = partial(read_labelled, spec=spec, cache_dir=cache_dir)
    records = training = read(source, key=key)
    rows: Sequence[int] = range(1, len(records) + 1)
    further_rows: Sequence[int] = ()
    if isinstance(held_out, Path):
        further = read(held_out, key=asked)
        tested = {unit_mark(record, unit) for record in further} - {None}
        known = {mark for record in records if (mark := unit_mark(record, unit)) in tested}
        both = [n for n, record in enumerate(further, 1) if unit_mark(record, unit) in known]
        if both:
            problem = (
                f"{len(both)} rows belong to units that also train, the first is row {both[0]}"
            )
            fix = "Take them out of one of the two files."
            raise DataError(problem, file=held_out, key=asked, fix=fix)
        further_rows = range(1, len(further) + 1)
    elif held_out is None:
        further = records.select([])
    else:
        rows, further_rows = trained, apart = array("q"), array("q")
        for number, record in enumerate(records, 1):
            (apart if is_apart(record, unit, held_out, HELD_OUT) else trained).append(number)
        if not (apart and trained):
            left = f"{len(trained)} rows to train on and {len(apart)} to test"
            problem = f"a share of {held_out:g} leaves {left}"
            fix = "Choose another share, or name a file of records to test on."
            raise DataError(problem, file=where(source), key=asked, value=held_out, fix=fix)
        training, further = (records.select(np.frombuffer(n, np.int64) - 1) for n in (rows, apart))
    as_read = training, further
    if transform is not None:
        transformed, named = load_part("data.transform"), f"{table}.transform"
        training = transformed(training, rows, transform, cache_dir, named)
        further = transformed(further, further_rows, transform, cache_dir, named)
    return OwnRecords(training, rows, further, as_read)
