"""Read records that are in memory already, as `fedpriv.data.read` reads those of a file."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedpriv.data.arrow import dataset_rows, opening_of
from fedpriv.data.formats import Row
from fedpriv.data.read import fields_of, quiet, read_rows
from fedpriv.errors import DataError
from fedpriv.files import private_folder

if TYPE_CHECKING:
    import datasets

IN_MEMORY = "the records in memory"
OF_COLUMNS = "Turn a dictionary of columns into a data set with datasets.Dataset.from_dict(…)."


class Records(Protocol):
    """Records in memory: rows, or columns.

    A list of rows, each a mapping from column to value; a data set of `datasets`; a data frame of
    pandas; or a table that Arrow can take, such as one of polars.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


def take_records(
    records: Records, columns: Mapping[str, str], *, unit: str, cache_dir: Path, key: str
) -> datasets.Dataset:
    """Return records that are in memory, as `read_records` gives those of a file.

    Args:
        columns, unit, cache_dir, key: see `read_records`.

    Raises:
        DataError: see `read_records`; never quotes a record. Or the records are a data set with a
            transform that sees several rows at once.

    Privacy:
        See `read_records`.
    """
    fields = fields_of(columns, unit)
    records = _opened(records, key)
    with quiet():
        if hasattr(records, "column_names"):
            start = opening_of(records, tuple(dict.fromkeys(fields.values())))
        else:
            start = (lambda: rows_of(records, key)), secrets.token_hex(16)
        return read_rows(start, fields, IN_MEMORY, key, private_folder(cache_dir))


def rows_of(records: Any, key: str) -> Iterator[Row]:
    """Yield the rows of records in memory, each a mapping from column to value.

    The classes of a data set come as names.

    Raises:
        DataError: they are no rows.
    """
    records = _opened(records, key)
    if hasattr(records, "column_names"):
        yield from dataset_rows(records)
        return
    try:
        rows = iter(records)
    except TypeError:  # such as a tensor of one number
        raise _no_rows(records, key, "Give a list of rows.") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            problem = f"row {number} is a {type(row).__name__}"
            fix = 'A row is a mapping from column to value, such as {"text": "…"}. ' + OF_COLUMNS
            raise DataError(problem, file=IN_MEMORY, key=key, fix=fix)
        yield Row(row, f"row {number}")


def names_of(records: Any) -> list[Any] | None:
    """Return the columns that all records share; None if each row has its own."""
    columns = getattr(records, "column_names", getattr(records, "columns", None))
    return None if columns is None else list(columns)


def check_records(records: Any, key: str) -> None:
    """Refuse what can't be iterated over by rows, or only once.

    Raises:
        DataError: it is refused. The error says what it is.
    """
    if isinstance(records, str | bytes | Path | type):
        fix = "Give the rows themselves, such as datasets.load_dataset(…) reads them."
    elif hasattr(records, "column_names") and not hasattr(records, "to_pylist"):
        _check_dataset(records, key)
        return
    elif isinstance(records, Mapping):
        fix = f"Give a list of rows. {OF_COLUMNS}"
    elif len(set(names := names_of(records) or [])) < len(names):
        fix = "Several of its columns have one name: rename them."
    elif not (hasattr(records, "__len__") and (hasattr(records, "__iter__") or names)):
        fix = "Give a list of its rows: they are read more than once."
    else:
        return
    raise _no_rows(records, key, fix)


def _opened(records: Any, key: str) -> Any:
    """Return a data set or rows. A data frame of pandas becomes a list of rows, a table a data set.

    Raises:
        DataError: as `check_records`.
    """
    check_records(records, key)
    if not hasattr(records, "itertuples"):
        if not (names_of(records) and hasattr(records, "__arrow_c_stream__")):
            return records
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        from datasets import Dataset

        return Dataset(pyarrow.table(records))
    columns = {name: _values(records[name]) for name in records.columns}  # a data frame of pandas
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    return [
        {k: v.tolist() if getattr(v, "shape", ()) else v for k, v in row.items()} for row in rows
    ]


def _values(column: Any) -> Any:
    """Return a column of pandas as it is: a missing value must not change the column's numbers."""
    if getattr(column.dtype, "na_value", None) is None:
        return column.to_numpy()
    return column.to_numpy(dtype=object, na_value=None)


def _no_rows(records: Any, key: str, fix: str) -> DataError:
    kind = type(records).__name__
    return DataError(f"is a {kind}, where rows are expected", file=IN_MEMORY, key=key, fix=fix)


def _check_dataset(records: Any, key: str) -> None:
    """Refuse splits, streams, and a `set_transform`, which would be left out here unnoticed."""
    from datasets import Dataset

    if isinstance(records, Mapping):
        fix = f"Give one split of it, such as records[{next(iter(records), 'train')!r}]."
        raise _no_rows(records, key, fix)
    if not isinstance(records, Dataset):
        fix = "Give one split of it, not as a stream: records are read more than once."
        raise _no_rows(records, key, fix)
    if records.format["type"] == "custom":
        how = "computed from several rows at once each time rows are read"
        fix = "Apply it to each record by itself first, with map, or leave it out."
        raise DataError(f"has a transform, which is {how}", file=IN_MEMORY, key=key, fix=fix)


KEY = "records"  # what errors call them
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
        if fields == {"messages"} and (more := {"tools", "chat_template_kwargs"} & set(row)):
            fix = 'Leave them out, or say columns={"messages": "messages"} to read no tools.'
            problem = f"has {' and '.join(sorted(more))} beside messages, and no template gets them"
            raise DataError(problem, key=KEY, fix=fix)
        if fields is None:
            fix = "Columns are text; prompt and completion; messages; or text and label. Name"
            fix += ' yours with columns, such as columns={"text": "note"}.'
            held, problem = sorted(map(str, row)), "are in no known format"
            raise DataError(problem, key=KEY, value=held, fix=fix)
        if found not in (None, fields):
            problem = f"row {number} is in another format than those before it"
            fix = 'Name the columns that are meant, such as columns={"text": "text"}, as no'
            fix += " record may decide how others are read."
            raise DataError(problem, key=KEY, fix=fix)
        found = fields
    if found is None:
        raise DataError("holds no record", key=KEY, fix="Give at least one.")
    return {field: field for field in sorted(found)}
