"""Data sets of `datasets`: a folder that it saved, one of a hub, one in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.arrow import arrow_rows
from fedpriv.data.formats import Row
from fedpriv.data.read import Opened, digest_of, no_records, reason_of
from fedpriv.errors import DataError
from fedpriv.proxy import through_hub

if TYPE_CHECKING:
    import datasets  # type: ignore[import-untyped, unused-ignore]


def load(source: Path | str, wanted: Sequence[str], cache_dir: Path, key: str) -> Opened:
    """What starts the rows of a folder, or of a data set of a hub, and a digest of them.

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
    """What starts its rows, and their digest; with all columns if a wanted one is missing."""
    present = set(wanted) <= set(dataset.column_names)
    chosen = dataset.with_format(None)
    chosen = chosen.select_columns(list(wanted)) if present else chosen
    digests = [digest_of(Path(file["filename"])) for file in dataset.cache_files]
    return lambda: dataset_rows(chosen), " ".join([str(dataset._fingerprint), *digests])


def dataset_rows(dataset: datasets.Dataset) -> Iterator[Row]:
    """Its rows, whatever format it was set to, with the names of its classes."""
    from datasets import ClassLabel

    classes = {
        column: feature.names
        for column, feature in dataset.features.items()
        if isinstance(feature, ClassLabel)
    }
    return arrow_rows(dataset.with_format("arrow").iter(batch_size=1024), classes)
