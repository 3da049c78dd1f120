"""Read a site's records from whatever holds them, as text, through `datasets`.

`datasets`' own readers of JSON and CSV infer a column's type from its rows, so that one row
changes others: an id 7 becomes "7.0" beside a missing one, a note "2020-01-01" a timestamp
beside other dates. Here every value is converted alone, by `fedpriv.data.values`, and only the
columns that were asked for are copied into the cache.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config.sources import OtherSource, Source, where
from fedpriv.data.encode import conversation
from fedpriv.data.formats import Row, of_source, reader_of
from fedpriv.data.values import OddValueError, as_id, as_json, as_text
from fedpriv.errors import DataError, did_you_mean
from fedpriv.files import private_folder
from fedpriv.models.config import HUB_NAME
from fedpriv.plugins import SOURCES, load

if TYPE_CHECKING:
    import datasets  # type: ignore[import-untyped, unused-ignore]

UNIT = "unit"
READING = 4  # change it when the same file is read in another way: results are kept


# A function that yields the rows from the first, and a digest of what they hold.
Opened = tuple[Callable[[], Iterator[Row]], str]


def read_records(
    source: Source, columns: Mapping[str, str], *, unit: str, cache_dir: Path, key: str
) -> datasets.Dataset:
    """Read the records of a file, a `save_to_disk` folder, a hub dataset, a database or FHIR.

    A database, and files of FHIR, are read anew at each call. What was read stays as it is, even if
    they change meanwhile.

    Args:
        source: a .jsonl, .json, .csv or .tsv file (plain or .gz), a .parquet or .arrow file,
            a folder saved by `save_to_disk`, or the "owner/name" of a hub dataset, whose
            train split is read; or the table that describes a database or FHIR.
        columns: field → column; the result's columns are named by the fields.
        unit: ``record``, or an id column, which becomes the column ``unit``.
        cache_dir: where `datasets` may write; it is made 0700.
        key: the setting that named the file, for error messages. A table that describes another
            source stands beside it, under the name of its kind.

    Returns:
        One row per record, in file order, or in that of the notes' ids. Every column is text, or
        None where the file has nothing, except ``messages``, which holds what the file held. A list
        of messages in another column is JSON text. Whole floats are written as integers, so that a
        label 1 that parquet stores as 1.0 is "1". `fedpriv.data.values` says how an id is read, so
        that " 7.0" is no second patient beside "7".

    Raises:
        DataError: the source is missing, empty, unreadable, or of an unknown format; a
            column is not in it; or `fedpriv.data.values` refuses a value. It names the row.

    Privacy:
        Reads private records and writes them, in clear, under `cache_dir` on this machine.
        Each row is converted alone. Messages name rows and columns, never contents.
    """
    fields = fields_of(columns, unit)
    if isinstance(source, OtherSource):
        key = f"{key.rpartition('.')[0]}.{source.kind}"
    with quiet():
        folder = private_folder(cache_dir)
        opened = open_source(source, tuple(dict.fromkeys(fields.values())), folder, key)
        return read_rows(opened, fields, where(source), key, folder)


def fields_of(columns: Mapping[str, str], unit: str) -> dict[str, str]:
    return dict(columns) if unit == "record" else {**columns, UNIT: unit}


def read_rows(
    opened: Opened, fields: Mapping[str, str], source: Path | str, key: str, folder: Path
) -> datasets.Dataset:
    rows, fingerprint = opened
    try:
        check_columns(rows(), fields, source, key)
        return _write(rows, fields, source, key, fingerprint, folder)
    except DataError:  # bound to a name below, it would keep its frames, and a private row in them
        raise
    except Exception as error:  # each format fails in its own way
        refused = _data_error(error)
        if refused is not None:
            raise refused from None
        problem = f"can't be read ({reason_of(error)})"
        fix = "Check that the file is whole and that its name ends as its format does."
        raise DataError(problem, file=source, key=key, fix=fix) from None


def open_source(source: Source, wanted: tuple[str, ...], cache_dir: Path, key: str) -> Opened:
    """Return a function that yields the source's rows from the first, and a digest of its content.

    A source that may have changed unnoticed has a new digest each time.
    """
    with of_source(where(source), key):
        start, digest = _opened(source, wanted, cache_dir, key)

    def rows() -> Iterator[Row]:
        with of_source(where(source), key):
            yield from start()

    return rows, digest


def _opened(source: Source, wanted: tuple[str, ...], cache_dir: Path, key: str) -> Opened:
    if isinstance(source, OtherSource):  # a new digest each time: attachments may be in other files
        rows = load(SOURCES, source.kind, key=key, problem="nothing that reads it is installed")
        return lambda: rows(source, wanted), secrets.token_hex()
    path = Path(source)
    if path.is_file():
        reader = reader_of(path, key)
        return lambda: reader(path, wanted), digest_of(path)
    if path.is_dir() or (isinstance(source, str) and re.fullmatch(HUB_NAME, source)):
        return load(SOURCES, "dataset", key=key)(source, wanted, cache_dir)  # type: ignore[no-any-return]
    siblings = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    fix = did_you_mean(path.name, siblings) or "Check the path."
    raise DataError("no such file", fix=fix)


def check_columns(
    rows: Iterable[Row], fields: Mapping[str, str], source: Path | str, key: str
) -> None:
    """Refuse a source without rows, or without a wanted column. A JSON record may lack keys."""
    available: dict[str, None] = {}
    for row in rows:
        available.update(dict.fromkeys(row.values))
        if available.keys() >= set(fields.values()):
            return
    if not available:
        raise no_records(source, key)
    field, column = next((f, c) for f, c in fields.items() if c not in available)
    fix = f"Its columns are {', '.join(map(str, available))}."
    if not all(_NAME.fullmatch(str(name).strip()) for name in available):
        fix = "It should name its columns in its first line, and holds something else there."
    fix = f"{did_you_mean(column, map(str, available))} {fix}".lstrip()
    problem = "no such column in the data"
    raise DataError(problem, file=source, key=_key_of(field, key), value=column, fix=fix)


def _key_of(field: str, of: str) -> str:
    """Return the setting that names the column of a field, in the file that has the key `of`."""
    if field != UNIT:
        return f"data.columns.{field}"
    return "data.unit" if of == "data.path" else "privacy.unit"


# What a column may be called. Where a header is missing, a record is in its place.
_NAME = re.compile(r"|(?=.{1,64}$)[^\W\d]\w*(?:[ .:/()#%-]+\w*){0,6}")


def no_records(source: Path | str | None = None, key: str | None = None) -> DataError:
    if key is not None and key.startswith("evaluation."):
        return DataError("has no records", file=source, key=key, fix="Name a file that has some.")
    problem, fix = "has no records: an empty site can't take part", "or leave the site out."
    return DataError(problem, file=source, key=key, fix=f"Give it records, {fix}")


def _write(
    rows: Callable[[], Iterator[Row]],
    fields: Mapping[str, str],
    source: Path | str,
    key: str,
    fingerprint: str,
    cache_dir: Path,
) -> datasets.Dataset:
    """Write the rows as a memory-mapped dataset of text columns, once per content."""
    from datasets import Dataset, Features, Value

    features = {field: Value("string") for field in fields}
    if "messages" in fields:
        from datasets import Json  # newer than the rest of what is used here

        features["messages"] = Json()

    def records() -> Iterator[dict[str, str | None]]:
        for row in rows():
            record = {}
            for field, column in fields.items():
                try:
                    record[field] = _value(row.values.get(column), field, fields)
                except OddValueError as error:
                    problem, file = f"{row.place} {error}", row.file or source
                    told = {"key": _key_of(field, key), "value": column, "fix": error.fix}
                    raise DataError(problem, file=file, **told) from None
            yield record

    named = json.dumps([READING, fingerprint, list(fields.items())])
    return Dataset.from_generator(
        records,
        features=Features(features),
        cache_dir=str(cache_dir),
        fingerprint=hashlib.sha256(named.encode()).hexdigest()[:32],
    )


def _value(value: Any, field: str, fields: Collection[str]) -> str | None:
    """Return one value as the records of a job have it; a text with a label is no conversation."""
    if field == UNIT:
        return as_id(value)
    if isinstance(value, list | dict) and (
        field == "messages" or ("label" not in fields and conversation(value))
    ):
        return as_json(value)
    return as_text(value)


def digest_of(path: Path) -> str:
    """Return a digest of the file's bytes: a changed file is never served from the cache."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _data_error(error: BaseException | None) -> DataError | None:
    """Return the DataError that `datasets` wrapped, if there is one."""
    while error is not None and not isinstance(error, DataError):
        error = error.__cause__ or error.__context__
    return error


def reason_of(error: BaseException) -> str:
    """Return the kind of the first failure; its text could quote a record."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars of `datasets` and of the hub while reading."""
    from datasets import utils as reading
    from huggingface_hub import utils as downloading

    shown = [m for m in (reading, downloading) if not m.are_progress_bars_disabled()]
    for module in shown:
        module.disable_progress_bars()
    try:
        yield
    finally:
        for module in shown:
            module.enable_progress_bars()
