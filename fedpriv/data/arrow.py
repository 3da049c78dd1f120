"""The rows of Parquet and Arrow files, and of tables in memory.

As `fedpriv.data.formats` has those of text files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from fedpriv.data.formats import Row, check_once, legible, text_or_bytes


def parquet_rows(path: Path, wanted: Sequence[str], key: str) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped, unused-ignore]

    with legible(path, key), ParquetFile(path) as file:
        names = file.schema_arrow.names
        check_once(names, wanted, path, key)
        present = set(wanted) <= set(names)
        columns = list(wanted) if present else None
        batches = file.iter_batches(batch_size=1024, columns=columns)
        yield from arrow_rows(batches, _classes(file.schema_arrow))


def file_rows(path: Path, wanted: Sequence[str], key: str) -> Iterator[Row]:
    """Arrow's stream format, which `datasets` writes, or its file format (Feather)."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

    with legible(path, key), pyarrow.memory_map(str(path)) as file:
        try:
            reader = pyarrow.ipc.open_stream(file)
            batches = iter(reader)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(file)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        check_once(reader.schema.names, wanted, path, key)
        present = set(wanted) <= set(reader.schema.names)
        kept = (b.select(list(wanted)) if present else b for b in batches)
        yield from arrow_rows(kept, _classes(reader.schema))


def arrow_rows(batches: Iterable[Any], classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """The rows of batches or tables of Arrow; a number that is of no class is missing.

    Args:
        classes: column → names, of the columns that hold numbers of classes.
    """
    number = 0
    for batch in batches:
        names = batch.schema.names
        columns = [
            [_name(value, classes[name]) for value in _values(column)]
            if name in classes
            else _values(column)
            for name, column in zip(names, batch.columns, strict=True)
        ]
        for values in zip(*columns, strict=True):
            number += 1
            yield Row(dict(zip(names, values, strict=True)), f"row {number}")


def _name(number: Any, names: Sequence[str]) -> str | None:
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else None


def _classes(schema: Any) -> dict[str, list[str]]:
    """The names of classes, as `datasets` writes them beside an Arrow schema (`ClassLabel`)."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {c: f["names"] for c, f in features.items() if f.get("_type") == "ClassLabel"}
    except (TypeError, ValueError, KeyError, AttributeError):  # nobody wrote any
        return {}


def _values(column: Any) -> Iterable[Any]:
    """A column's values; floats of few bits as numpy has them, and text that is none as bytes.

    Raises:
        pyarrow.ArrowInvalid: it is damaged, which Arrow would read from anywhere in memory.
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
