"""What is stored as Arrow has it: Parquet and Arrow files, and data sets of `datasets`.

As `fedpriv.data.formats` has the rows of text files.
"""

from __future__ import annotations

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
    """Read Arrow's stream format, which `datasets` writes, or its file format (Feather)."""
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
    """Yield the rows of batches or tables of Arrow; a number of no class counts as missing.

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
    """Return the names of classes that `datasets` writes beside an Arrow schema (`ClassLabel`)."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {c: f["names"] for c, f in features.items() if f.get("_type") == "ClassLabel"}
    except (TypeError, ValueError, KeyError, AttributeError):  # nobody wrote any
        return {}


def _values(column: Any) -> Iterable[Any]:
    """Return a column's values; short floats as numpy has them, and text that is no UTF-8 as bytes.

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


def load_dataset_of(source: Path | str, wanted: Sequence[str], cache_dir: Path, key: str) -> Opened:
    """Return what starts the rows of a folder or a hub's data set, and a digest of them.

    Raises:
        DataError: it can't be loaded, or holds several splits and none is called train.
    """
    path = Path(source)
    found = _load_folder(path, key) if path.is_dir() else _load_hub(str(source), cache_dir, key)
    return opening_of(found, wanted)


def _load_folder(path: Path, key: str) -> datasets.Dataset:
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(path))
    except Exception:  # of a folder that may hold anything
        if (path / "state.json").is_file() and not any(path.glob("*.arrow")):
            raise no_records(path, key) from None  # saved empty, which datasets can't load
        raise DataError(
            "is a folder that was not written by save_to_disk, or is damaged",
            file=path,
            key=key,
            fix="Name a data file inside it, or save it again.",
        ) from None
    return _one_split(loaded, path, key) if isinstance(loaded, DatasetDict) else loaded


def _load_hub(name: str, cache_dir: Path, key: str) -> datasets.Dataset:
    from datasets import load_dataset

    try:
        loaded = load_dataset(name, cache_dir=str(cache_dir))
    except Exception as error:  # of the network, the hub or the files there
        raise DataError(
            f"is no file here, and can't be loaded from the hub{through_hub()}"
            f" ({reason_of(error)})",
            file=name,
            key=key,
            fix="Check the path, or the name and the network.",
        ) from None
    return _one_split(loaded, name, key)


def _one_split(splits: Mapping[str, Any], source: Path | str, key: str) -> datasets.Dataset:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if "train" in splits:
        return splits["train"]
    raise DataError(
        "holds several splits and none is called train",
        file=source,
        key=key,
        value=list(splits),
        fix="Save the one that is meant by itself.",
    )


def opening_of(dataset: datasets.Dataset, wanted: Sequence[str]) -> Opened:
    """Return what starts its rows, and their digest; with all columns if a wanted one lacks."""
    present = set(wanted) <= set(dataset.column_names)
    chosen = dataset.with_format(None)
    chosen = chosen.select_columns(list(wanted)) if present else chosen
    digests = [digest_of(Path(file["filename"])) for file in dataset.cache_files]
    return lambda: dataset_rows(chosen), " ".join([str(dataset._fingerprint), *digests])


def dataset_rows(dataset: datasets.Dataset) -> Iterator[Row]:
    """Yield its rows, whatever format it was set to, with the names of its classes."""
    from datasets import ClassLabel

    classes = {
        column: feature.names
        for column, feature in dataset.features.items()
        if isinstance(feature, ClassLabel)
    }
    return arrow_rows(dataset.with_format("arrow").iter(batch_size=1024), classes)
