"""Read the records of sites by unit, to divide them anew, and make canaries into records."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpriv.config.sites import Sites
from fedpriv.data.encode import Example, encode_record
from fedpriv.data.read import UNIT
from fedpriv.data.spec import DataSpec
from fedpriv_audit.canaries import Canary
from fedpriv_server.own_records import read_site, written_columns

Row = dict[str, Any]  # column → value
TEXTS = ({"text"}, {"prompt", "completion"}, {"messages"})  # columns that can hold a canary


@dataclass(frozen=True)
class AuditedUnit:
    """A site's unit: its rows, as they stand in the site's file."""

    site: str
    rows: tuple[Row, ...]


def read_units(sites: Sites, spec: DataSpec) -> list[AuditedUnit]:
    """Read all units of the sites that train, prepared as `spec` says.

    Raises:
        DataError: see `read_site`.

    Privacy:
        The result is as private as the records. A site's records are in clear text in a temporary
        folder while they are read.
    """
    found = []
    for site in sites:
        with tempfile.TemporaryDirectory() as cache:
            units: dict[str, list[Row]] = {}
            for number, record in enumerate(read_site(site, spec, Path(cache)).training):
                row = {column: record[field] for field, column in written_columns(spec).items()}
                key = str(number) if spec.unit == "record" else str(record[UNIT])
                units.setdefault(key, []).append(row)
        found += [AuditedUnit(site.name, tuple(rows)) for rows in units.values()]
    return found


def chosen(units: list[AuditedUnit], count: int, seed: int) -> list[AuditedUnit]:
    """Choose `count` units at random, or all of them. Their order stays."""
    places = random.Random(seed).sample(range(len(units)), min(count, len(units)))
    return [units[place] for place in sorted(places)]


def write_site(path: Path, rows: Iterable[Row]) -> None:
    """Write a file of records that only its owner can read."""
    path.touch(mode=0o600)
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def can_hold_canaries(spec: DataSpec) -> bool:
    """Tell whether the records are texts that a model learns to continue."""
    return set(spec.columns) in TEXTS


def canary_rows(spec: DataSpec, canary: Canary) -> list[Row]:
    """Return the rows of a canary, one for each time that it is inserted.

    Each row is its own unit.
    """
    row = canary_row(spec, canary.prompt, canary.secret)
    if spec.unit == "record":
        return [row] * canary.times
    number = canary.prompt.split()[-2]
    return [{**row, spec.unit: f"canary-{number}-{i}"} for i in range(canary.times)]


def canary_row(spec: DataSpec, prompt: str, secret: str) -> Row:
    """Make a row of a prompt and its continuation, in the federation's columns."""
    fields: Mapping[str, Any] = {
        "text": f"{prompt} {secret}.",
        "prompt": prompt,
        "completion": f" {secret}.",
        "messages": [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": f"{secret}."},
        ],
    }
    return {column: fields[field] for field, column in spec.columns.items()}


def examples_of(spec: DataSpec, rows: Iterable[Row], tokenizer: Any) -> list[Example]:
    """Return what a model is trained on from these rows of one unit. This may be nothing."""
    found = list[Example]()
    for number, row in enumerate(rows, 1):
        record = {field: row[column] for field, column in spec.columns.items()}
        found += encode_record(record, spec, tokenizer, row=number, source="records")
    return found[: spec.max_records_per_unit]
