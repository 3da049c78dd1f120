"""Read the rows of Parquet and Arrow files, and of data sets of `datasets`.

`fedpriv.data.formats` does the same for text files.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedpriv.data.formats import Row, check_once, legible, text_or_bytes
from fedpriv.data.read import Opened, digest_of, no_records, reason_of
from fedpriv.errors import DataError
from fedpriv.proxy import through_hub

if TYPE_CHECKING:
    import datasets


def parquet_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped, unused-ignore]

    with legible(path), ParquetFile(path) as file:
        schema = file.schema_arrow
        batches = file.iter_batches(batch_size=1024, columns=_read_of(schema.names, wanted))
        yield from arrow_rows(batches, _classes(schema))


def file_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    """Read Arrow's stream format, which `datasets` writes, or its file format (Feather)."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

    with legible(path), pyarrow.memory_map(str(path)) as file:
        try:
            reader = pyarrow.ipc.open_stream(file)
            batches = iter(reader)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(file)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        columns = _read_of(reader.schema.names, wanted)
        kept = batches if columns is None else (one.select(columns) for one in batches)
        yield from arrow_rows(kept, _classes(reader.schema))


def _read_of(names: Sequence[str], wanted: Sequence[str]) -> list[str] | None:
    """Return the columns to read: those that are wanted, or None for all if one is missing."""
    check_once(names, wanted)
    return list(wanted) if set(wanted) <= set(names) else None


def arrow_rows(batches: Iterable[Any], classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """Yield the rows of Arrow batches or tables. A number that no class has counts as missing.

    Args:
        classes: column → class names, for the columns that hold numbers of classes.
    """
    numbers = itertools.count(1)
    for batch in batches:
        named = zip(batch.schema.names, batch.columns, strict=True)
        columns = {name: _values(column) for name, column in named}
        for name in classes.keys() & columns.keys():
            columns[name] = [_name(value, classes[name]) for value in columns[name]]
        for values in zip(*columns.values(), strict=True):
            yield Row(dict(zip(columns, values, strict=True)), f"row {next(numbers)}")


def _name(number: Any, names: Sequence[str]) -> str | None:
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else None


def _classes(schema: Any) -> dict[str, list[str]]:
    """Return the names of classes that `datasets` writes beside an Arrow schema (`ClassLabel`)."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {c: f["names"] for c, f in features.items() if f.get("_type") == "ClassLabel"}
    except (TypeError, ValueError, KeyError, AttributeError):  # there are no class names
        return {}


def _values(column: Any) -> Iterable[Any]:
    """Return a column's values: short floats as numpy has them, text that is not UTF-8 as bytes.

    Raises:
        pyarrow.ArrowInvalid: the column is damaged. Arrow would read it from anywhere in memory.
    """
    import pyarrow

    kind = column.type
    raw = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
    if kind in raw:
        column = column.cast(raw[kind])
    column.validate(full=True)
    if kind in raw:
        return [one if one is None else text_or_bytes(one) for one in column.to_pylist()]
    if pyarrow.types.is_float16(kind) or pyarrow.types.is_float32(kind):
        return cast("Iterable[Any]", column.to_numpy(zero_copy_only=False))
    return cast("list[Any]", column.to_pylist())


def load_dataset_of(source: Path | str, wanted: Sequence[str], cache_dir: Path) -> Opened:
    """Return a function that yields the rows of a folder or a hub's data set, and their digest.

    Raises:
        DataError: it can't be loaded, or holds several splits and none is called train.
    """
    path = Path(source)
    found = _load_folder(path) if path.is_dir() else _load_hub(str(source), cache_dir)
    if isinstance(found, Mapping):
        if "train" not in found and len(found) != 1:
            problem = "holds several splits and none is called train"
            fix = "Save the split that you mean by itself."
            raise DataError(problem, value=list(found), fix=fix)
        found = found["train"] if "train" in found else next(iter(found.values()))
    return opening_of(found, wanted)


def _load_folder(path: Path) -> Any:
    from datasets import load_from_disk

    try:
        return load_from_disk(str(path))
    except Exception:  # the folder may hold anything
        if (path / "state.json").is_file() and not any(path.glob("*.arrow")):
            raise no_records() from None  # saved empty: datasets can't load it
        problem = "is a folder that was not written by save_to_disk, or is damaged"
        fix = "Name a data file inside it, or save it again."
        raise DataError(problem, fix=fix) from None


def _load_hub(name: str, cache_dir: Path) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(name, cache_dir=str(cache_dir))
    except Exception as error:  # from the network, the hub or its files
        problem = f"can't be loaded from the hub{through_hub()} ({reason_of(error)})"
        fix = "Check the path, or the name and the network."
        raise DataError(f"is no file here, and {problem}", fix=fix) from None


def opening_of(dataset: datasets.Dataset, wanted: Sequence[str]) -> Opened:
    """Return what yields the rows, and their digest. If a wanted column is missing, all come."""
    columns = _read_of(dataset.column_names, wanted)
    chosen = dataset.with_format(None)
    chosen = chosen if columns is None else chosen.select_columns(columns)
    digests = [digest_of(Path(file["filename"])) for file in dataset.cache_files]
    return lambda: dataset_rows(chosen), " ".join([str(dataset._fingerprint), *digests])


def dataset_rows(dataset: datasets.Dataset) -> Iterator[Row]:
    """Yield the rows of a data set, whatever format it was set to, with names for its classes."""
    from datasets import ClassLabel

    features = dataset.features.items()
    classes = {column: one.names for column, one in features if isinstance(one, ClassLabel)}
    return arrow_rows(dataset.with_format("arrow").iter(batch_size=1024), classes)
