"""What tells a record's unit from others: for the site alone, see `fedpriv.privacy.units`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedpriv.data.read import UNIT
from fedpriv.files import canonical_json


def identities(record: Mapping[str, Any], unit: str) -> list[bytes]:
    """The byte strings that one record's unit is known by; none for an empty record.

    The record's content is one, so that the same notes are recognised by record and by
    patient. It is every field but the label, with white space reduced to single spaces: the
    same notes with another label, or from a file of another format, are the same people's.
    Under an id column the id, together with the column's name, comes before it.

    Args:
        record: a row of `read_records`.
        unit: ``record``, or the id column that the row's ``unit`` was read from.

    Privacy:
        Private as the record itself.
    """
    found = [] if unit == "record" else [canonical_json(["unit", unit, record[UNIT]])]
    content = {f: _text(value) for f, value in record.items() if f not in (UNIT, "label")}
    if any(content.values()):
        found.append(canonical_json(["record", content]))
    return found


def _text(value: Any) -> str:
    if value and not isinstance(value, str):
        value = json.dumps(value, sort_keys=True)
    return " ".join((value or "").split())
