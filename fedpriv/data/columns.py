"""Which columns records in memory have, where nobody says."""

from __future__ import annotations

from fedpriv.data.read import Records
from fedpriv.errors import DataError

KEY = "records"  # how errors call them
# In the order in which they are looked for: a table of conversations may have a text, too.
_FIELDS = ({"messages"}, {"prompt", "completion"}, {"text", "label"}, {"text"})


def columns_of(records: Records) -> dict[str, str]:
    """The columns of records that are in one of the formats of trl, or a text with a label.

    Raises:
        DataError: they are in none, or there is no record.
    """
    named = getattr(records, "column_names", None)
    if named is None:
        if not len(records):
            raise DataError("holds no record", key=KEY, fix="Give at least one.")
        named = list(next(iter(records)))
    for fields in _FIELDS:
        if fields <= set(named):
            return {field: field for field in sorted(fields)}
    raise DataError(
        "are in no format that is known",
        key=KEY,
        value=sorted(map(str, named)),
        fix="Columns are text; prompt and completion; messages; or text and label. Name yours"
        ' with columns, such as columns={"text": "note"}.',
    )
