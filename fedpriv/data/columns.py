"""Which columns records in memory have, where nobody says."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedpriv.data.in_memory import Records, check_records, names_of, rows_of
from fedpriv.errors import DataError

KEY = "records"  # how errors call them
# In the order in which they are looked for: a table of conversations may have a text, too.
_FIELDS = ({"messages"}, {"prompt", "completion"}, {"text", "label"}, {"text"})


def columns_of(records: Records) -> dict[str, str]:
    """Return the columns of records in one of the formats of trl, or of a text with a label.

    Raises:
        DataError: they are in none, or in several, or there is no record.

    Privacy:
        A record decides about itself alone (law 2): rows in a list all have to say the same.
    """
    check_records(records, KEY)
    named = names_of(records)
    rows: Iterable[Collection[str]] = (
        (row.values for row in rows_of(records, KEY)) if named is None else [named]
    )
    found: set[str] | None = None
    for number, row in enumerate(rows, 1):
        fields = next((fields for fields in _FIELDS if fields <= set(row)), None)
        if fields is None:
            raise DataError(
                "are in no format that is known",
                key=KEY,
                value=sorted(map(str, row)),
                fix="Columns are text; prompt and completion; messages; or text and label. Name"
                ' yours with columns, such as columns={"text": "note"}.',
            )
        if found not in (None, fields):
            raise DataError(
                f"row {number} is in another format than those before it",
                key=KEY,
                fix='Name the columns that are meant, such as columns={"text": "text"}, as no'
                " record may decide how others are read.",
            )
        found = fields
    if found is None:
        raise DataError("holds no record", key=KEY, fix="Give at least one.")
    return {field: field for field in sorted(found)}
