"""What tells a record's unit from others: for the site alone, see `fedpriv.privacy.units`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedpriv.data.read import UNIT
from fedpriv.files import canonical_json
from fedpriv.privacy.units import ID, Identity


def identities(record: Mapping[str, Any], unit: str) -> list[Identity]:
    """What one record's unit is known by; none for an empty record.

    Each text of the record is one, so that the same notes are recognised by record and by patient,
    and whatever field they are read into. Labels are none: too many people share them. White space
    counts as a single space, whatever the file's format. Under an id column the id comes before
    the texts. Neither the name of a column nor that of a field is part of it: the same people may
    be ``mrn`` in one file and ``patient_nbr`` in another.

    Args:
        record: a row of `read_records`.
        unit: ``record``, or the id column that the row's ``unit`` was read from.

    Privacy:
        Private as the record itself.
    """
    found = [] if unit == "record" else [Identity(ID, canonical_json(["unit", record[UNIT]]))]
    for field, value in record.items():
        if field not in (UNIT, "label") and (text := _text(value)):
            found.append(Identity(field, canonical_json(["text", text])))
    return found


def whole_record(record: Mapping[str, Any]) -> bytes:
    """What tells a record from every other but its copies; nothing for an empty record.

    All of its texts by their fields; labels, ids and white space apart.

    Privacy:
        Private as the record itself.
    """
    texts = {f: _text(value) for f, value in record.items() if f not in (UNIT, "label")}
    return canonical_json(texts) if any(texts.values()) else b""


def _text(value: Any) -> str:
    if value and not isinstance(value, str):
        value = json.dumps(value, sort_keys=True)
    return " ".join((value or "").split())
