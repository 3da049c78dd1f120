"""Say what tells a record's unit from others. This is for the site alone.

See `fedpriv.privacy.ledger.unit_index`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedpriv.data.encode import conversation
from fedpriv.data.read import UNIT
from fedpriv.data.values import as_read
from fedpriv.files import canonical_json
from fedpriv.privacy.ledger.unit_index import ID, Identity


def identities(record: Mapping[str, Any], unit: str) -> list[Identity]:
    """Return what one record's unit is known by; nothing for an empty record.

    Each text of the record is one identity, and so is each message of a conversation. So the same
    notes are recognised by record and by patient, and whatever field they are read into. Labels are
    no identities: too many people share them. Texts are compared as people read them, white space
    as a single space. Under an id column the id comes before the texts. Neither the name of a
    column nor that of a field is part of an identity: the same people may be ``mrn`` in one file
    and ``patient_nbr`` in another.

    Args:
        record: a row of `read_records`.
        unit: ``record``, or the id column that the row's ``unit`` was read from.

    Privacy:
        Private as the record itself.
    """
    found = [] if unit == "record" else [Identity(ID, canonical_json(["unit", record[UNIT]]))]
    for field, texts in _texts(record).items():
        found += [Identity(field, canonical_json(["text", text])) for text in texts]
    return found


def whole_record(record: Mapping[str, Any]) -> bytes:
    """Return bytes that tell a record from all but its copies; empty for an empty record.

    They hold its texts by field, with white space as a single space, without labels and ids.

    Privacy:
        Private as the record itself.
    """
    texts = _texts(record)
    return canonical_json(texts) if any(texts.values()) else b""


def _texts(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the texts of each field, as people read them."""
    found = {}
    for field, value in record.items():
        if field not in (UNIT, "label"):
            talk = conversation(value) if field == "messages" else None
            held = [value] if talk is None else [message["content"] for message in talk]
            found[field] = [text for text in map(_text, held) if text]
    return found


def _text(value: Any) -> str:
    if value and not isinstance(value, str):
        value = json.dumps(value, sort_keys=True)
    return " ".join(as_read(value or "").split())
