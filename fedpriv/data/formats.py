"""The rows of a local file, one by one, with each value as the file has it.

A reader takes the path, the columns that are wanted (a table without one of them is read
whole, so that its columns can be named) and the setting that named the file, for errors.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from fedpriv.errors import DataError

Row = Mapping[str, Any]
Reader = Callable[[Path, Sequence[str], str], Iterator[Row]]
MAX_FIELD = 2**31 - 1  # characters of a CSV field; Python's default is 131,072


def json_rows(path: Path, wanted: Sequence[str], key: str) -> Iterator[Row]:
    """JSON lines, or one JSON array."""
    with _text(path) as stream:
        while (first := stream.read(1)).isspace():
            pass
        stream.seek(0)
        if first == "[":
            yield from (
                _object(value, n, path, key) for n, value in enumerate(json.load(stream), 1)
            )
            return
        for number, line in enumerate(stream, 1):
            if line.strip():
                try:
                    value = json.loads(line)
                except ValueError:
                    raise DataError(
                        f"line {number} is not JSON",
                        file=path,
                        key=key,
                        fix="Expected one object per line, or one array of objects.",
                    ) from None
                yield _object(value, number, path, key)


def _object(value: Any, number: int, path: Path, key: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(
            f"record {number} is not a JSON object",
            file=path,
            key=key,
            fix='Expected one object per record, such as {"text": "…"}.',
        )
    return value


def _csv_rows(path: Path, wanted: Sequence[str], key: str, delimiter: str = ",") -> Iterator[Row]:
    """Separated values with a header; every value is the text that was written."""
    csv.field_size_limit(MAX_FIELD)
    with _text(path) as stream:
        # strict: an unclosed quote would otherwise swallow the rows after it into one record.
        reader = csv.DictReader(stream, delimiter=delimiter, strict=True)
        try:
            for number, row in enumerate(reader, 1):
                if None in row:
                    raise DataError(
                        f"row {number} has more fields than the header",
                        file=path,
                        key=key,
                        fix=f"Quote values that hold {delimiter!r}.",
                    )
                yield row
        except csv.Error:
            raise DataError(
                f"is not well formed up to line {reader.line_num}",
                file=path,
                key=key,
                fix="Check its quotes: one that opens a value must close it.",
            ) from None


def _parquet_rows(path: Path, wanted: Sequence[str], key: str) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped, unused-ignore]

    with ParquetFile(path) as file:
        present = set(wanted) <= set(file.schema_arrow.names)
        classes = _classes(file.schema_arrow)
        for batch in file.iter_batches(batch_size=1024, columns=list(wanted) if present else None):
            yield from named(batch.to_pylist(), classes)


def _arrow_rows(path: Path, wanted: Sequence[str], key: str) -> Iterator[Row]:
    """Arrow's stream format, which `datasets` writes, or its file format (Feather)."""
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

    with pyarrow.memory_map(str(path)) as file:
        try:
            reader = pyarrow.ipc.open_stream(file)
            batches = iter(reader)
        except pyarrow.ArrowInvalid:
            reader = pyarrow.ipc.open_file(file)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        present = set(wanted) <= set(reader.schema.names)
        classes = _classes(reader.schema)
        for batch in batches:
            rows = (batch.select(list(wanted)) if present else batch).to_pylist()
            yield from named(rows, classes)


def named(rows: Iterable[Row], classes: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """The rows with the names of classes in place of their numbers; a number of none is missing.

    Args:
        classes: column → names, of the columns that hold classes.
    """
    for row in rows:
        found = {column: row[column] for column in classes.keys() & row.keys()}
        yield {**row, **{c: _name(number, classes[c]) for c, number in found.items()}}


def _name(number: Any, names: Sequence[str]) -> str | None:
    return names[number] if isinstance(number, int) and 0 <= number < len(names) else None


def _classes(schema: Any) -> dict[str, list[str]]:
    """The names of classes, as `datasets` writes them beside an Arrow schema (`ClassLabel`)."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {c: f["names"] for c, f in features.items() if f.get("_type") == "ClassLabel"}
    except (TypeError, ValueError, KeyError, AttributeError):  # nobody wrote any
        return {}


def _text(path: Path) -> TextIO:
    """The file as UTF-8 text, without a byte order mark, with its own line ends."""
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


READERS: dict[str, Reader] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": _csv_rows,
    ".tsv": partial(_csv_rows, delimiter="\t"),
    ".parquet": _parquet_rows,
    ".arrow": _arrow_rows,
}
COMPRESSED = (".jsonl", ".json", ".csv", ".tsv")


def reader_of(path: Path, key: str) -> Reader:
    """The reader for a file, by its name.

    Raises:
        DataError: the name ends in none that is known.
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        suffix = Path(path.stem).suffix.lower()
        if suffix not in COMPRESSED:
            suffix = ".gz"
    if suffix not in READERS:
        raise DataError(
            "unknown format",
            file=path,
            key=key,
            value=path.suffix,
            fix=f"Expected {', '.join(READERS)} ({', '.join(COMPRESSED)} also as .gz),"
            " or a folder written by save_to_disk.",
        )
    return READERS[suffix]
