"""Records that are in memory already, as `fedpriv.data.read` has those of a file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
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


class Records(Protocol):
    """A data set in memory, or the list of its rows, each a mapping from column to value."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...


def take_records(
    records: Records,
    columns: Mapping[str, str],
    *,
    unit: str,
    cache_dir: Path,
    key: str,
) -> datasets.Dataset:
    """Records that are in memory, as `read_records` gives those of a file.

    Args:
        columns, unit, cache_dir, key: see `read_records`.

    Raises:
        DataError: see `read_records`; never quotes a record. Or it is a data set whose texts are
            to go through a function that sees several rows at once.

    Privacy:
        As `read_records`.
    """
    fields = fields_of(columns, unit)
    check_records(records, key)
    with quiet():
        if hasattr(records, "column_names"):
            start = opening_of(records, tuple(dict.fromkeys(fields.values())))
        else:
            start = (lambda: rows_of(records, key)), secrets.token_hex(16)
        return read_rows(start, fields, IN_MEMORY, key, private_folder(cache_dir))


_AS_ROWS = {  # how other tables are made a list of rows
    "to_pylist": "Give its rows: to_pylist().",
    "to_dicts": "Give its rows: to_dicts().",
    "to_dict": 'Give its rows: to_dict("records").',
}


def rows_of(records: Any, key: str) -> Iterator[Row]:
    """The rows of records in memory, each a mapping from column to value.

    The classes of a data set have their names.

    Raises:
        DataError: they are no rows.
    """
    check_records(records, key)
    if hasattr(records, "column_names"):
        yield from dataset_rows(records)
        return
    try:
        rows = iter(records)
    except TypeError:  # such as a class, or a tensor of one number
        raise _no_rows(records, key, "Give a list of rows.") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {number} is a {type(row).__name__}",
                file=IN_MEMORY,
                key=key,
                fix='A row is a mapping from column to value, such as {"text": "…"}.',
            )
        yield Row(row, f"row {number}")


def check_records(records: Any, key: str) -> None:
    """Refuse what does not iterate over rows, or only once.

    Raises:
        DataError: says what it is.
    """
    if hasattr(records, "column_names") and not hasattr(records, "to_pylist"):
        _check_dataset(records, key)
        return
    if isinstance(records, Mapping):
        fix = "Give a list of rows, or datasets.Dataset.from_dict(…) of columns."
    elif isinstance(records, str | bytes | Path):
        fix = "Give the rows themselves, such as datasets.load_dataset(…) reads them."
    elif found := [text for name, text in _AS_ROWS.items() if hasattr(records, name)]:
        fix = found[0]
    elif not (hasattr(records, "__iter__") and hasattr(records, "__len__")):
        fix = "Give a list of its rows: they are read more than once."
    else:
        return
    raise _no_rows(records, key, fix)


def _no_rows(records: Any, key: str, fix: str) -> DataError:
    kind = type(records).__name__
    return DataError(f"is a {kind}, where rows are expected", file=IN_MEMORY, key=key, fix=fix)


def _check_dataset(records: Any, key: str) -> None:
    """Refuse what `set_transform` makes of rows: it is left out here, and may not be noticed."""
    from datasets import Dataset

    if not isinstance(records, Dataset):
        raise _no_rows(records, key, "Give one split of it, and not as a stream.")
    if records.format["type"] == "custom":
        raise DataError(
            "has a transform, which is made of several rows at once whenever some are looked at",
            file=IN_MEMORY,
            key=key,
            fix="Apply it to each record by itself first, with map, or leave it out.",
        )
