"""Read the rows of a local file, one by one, with each value as the file has it.

A reader takes the path and the wanted columns. If a table lacks one of them, a row comes that has
all columns of the table, so that an error can name them. A reader's errors say neither which file
it read nor which setting named the file: the caller adds that (`of_source`). What a value becomes,
and what is refused, is decided by `fedpriv.data.values`.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from fedpriv.errors import DataError
from fedpriv.files import each_once
from fedpriv.plugins import SOURCES, load


class Row(NamedTuple):
    """One record, as a source has it.

    Attributes:
        values: the values by the names of the columns.
        place: the record's place in its file, such as ``line 3``, for errors.
        file: the record's file, if the source is several files.
    """

    values: Mapping[str, Any]
    place: str
    file: Path | None = None


Reader = Callable[[Path, Sequence[str]], Iterator[Row]]
MAX_FIELD = 2**31 - 1  # characters of a CSV field; Python's default is 131,072
DELIMITERS = ",;\t|"
UTF8 = "Save it as UTF-8."
MAGIC = (  # how files begin that may have the wrong name
    (b"\xff\xfe", "text in UTF-16 or UTF-32, not in UTF-8", UTF8),
    (b"\xfe\xff", "text in UTF-16, not in UTF-8", UTF8),
    (b"\x1f\x8b", "packed by gzip", "End its name in .gz."),
    (b"PK\x03\x04", "a ZIP file or a workbook", "Unpack it, or save the sheet as CSV in UTF-8."),
    (b"\xd0\xcf\x11\xe0", "an old workbook", "Save the sheet as CSV in UTF-8."),
    (b"PAR1", "a Parquet file", "End its name in .parquet."),
    (b"ARROW1", "an Arrow file", "End its name in .arrow."),
    (b"SQLite format 3\0", "an SQLite database", "Describe it in a table omop."),
)


@contextmanager
def of_source(file: Path | str, key: str = "") -> Iterator[None]:
    """Say in a reader's error which file it is about, and which setting named the source.

    Args:
        key: the setting. If the error is about a key of it, such as ``.url``, that is appended.
    """
    try:
        yield
    except DataError as error:
        raise error.but(file=error.file or file, key=f"{key}{error.key or ''}") from None


def json_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    """Read JSON lines, or one JSON array."""
    with legible(path), _text(path) as stream:
        while (first := stream.read(1)).isspace():
            pass
        stream.seek(0)
        if first == "[":
            for number, value in enumerate(_parsed(stream.read(), None), 1):
                yield _row(value, f"record {number}")
            return
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _row(_parsed(line, number), f"line {number}")


def _parsed(text: str, line: int | None) -> Any:
    """Parse one line, or a whole file if there is no line number."""
    try:
        return json.loads(text, object_pairs_hook=each_once)
    except json.JSONDecodeError as error:
        problem = f"is no whole JSON array: it ends, or is no JSON, in line {error.lineno}"
        problem = f"line {line} is not JSON" if line else problem
    except RecursionError:
        problem = f"{'an array' if line is None else f'line {line}'} is nested too deeply"
    except ValueError as error:  # from `each_once`, or a number of thousands of digits
        said = "a key twice" if "twice" in str(error) else "a number of too many digits"
        problem = f"{'an object' if line is None else f'line {line}'} has {said}"
    fix = "Expected one object per line, or one array of objects and nothing around it."
    raise DataError(problem, fix=fix) from None


def _row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        fix = 'Expected one object per record, such as {"text": "…"}.'
        raise DataError(f"{place} is not a JSON object", fix=fix)
    return Row(value, place)


def _csv_rows(path: Path, wanted: Sequence[str], delimiter: str = ",") -> Iterator[Row]:
    """Read separated values with a header; every value is the text that was written.

    The header decides which delimiter separates them: it is public, and no record.
    """
    csv.field_size_limit(MAX_FIELD)
    with legible(path), _text(path) as stream:
        before, first = 0, ""
        for first in stream:  # Excel may name the delimiter in a line before the header
            if first.strip(f'\r\n "{DELIMITERS}') and not re.match(r'"?sep=.', first, re.I):
                break
            before, first = before + 1, ""
        delimiter = max(delimiter + DELIMITERS, key=partial(_fits, first, frozenset(wanted)))
        # strict: an unclosed quote would otherwise swallow the rows after it into one record.
        rows = csv.reader(chain([first], stream), delimiter=delimiter, strict=True)
        try:
            header = next(rows, [])
            check_once(header, wanted)
            if "\0" in first:
                raise DataError("begins with a NUL", fix=f"It may be UTF-16. {UTF8}")
            if not set(wanted) <= set(header):
                yield Row(dict.fromkeys(header), "the header")  # so errors can name its columns
                return
            quotes = '"' in first
            for number, row in enumerate(filter(None, rows), 1):
                place = f"row {number} (line {before + rows.line_num})"
                if len(row) != len(header):
                    problem = f"{place} has {len(row)} fields, and the header {len(header)}"
                    fix = f"Quote values that hold {delimiter!r} or a line break."
                    raise DataError(problem, fix=fix)
                if [row[0].lstrip("\ufeff"), *row[1:]] == header:
                    raise DataError(f"{place} is the header again", fix="Take it out.")
                if "\0" in "".join(row):
                    fix = f"Is it UTF-16, or damaged? {UTF8}"
                    raise DataError(f"{place} holds a NUL", fix=fix)
                if not quotes and _holds_rows(row, delimiter):
                    fix = "Quote every value, the header's too, or save it as JSON lines."
                    raise DataError(f"{place} quotes lines that could be rows", fix=fix)
                quotes = quotes or any(delimiter in value for value in row)
                yield Row(dict(zip(header, row, strict=True)), place)
        except csv.Error:
            problem = f"is not well formed up to line {before + rows.line_num}"
            fix = "Check its quotes: one that opens a value must close it."
            raise DataError(problem, fix=fix) from None


def _holds_rows(row: Sequence[str], delimiter: str) -> bool:
    """Tell whether each line of a record could be a row, in a file that quotes nothing.

    In such a file a text that begins with a quote swallows the rows up to a text that ends with
    one. Prose is no such case: some line has no delimiter, or a space after it, or before a comma.
    """
    broken = [value for value in row if "\n" in value or "\r" in value]  # values of several lines
    if not broken or len(row) == 1 or any('"' in value for value in broken):
        return False  # a program that doubles quotes knows how to quote
    mark = re.escape(delimiter)
    space = " " if delimiter == "," and " " not in row[0] else ""  # an id has no space
    start = rf"[^{mark}\r\n{space}]*{mark}" + ("" if delimiter == "\t" else "(?! )")
    line = rf"{start}(?:[^{mark}\r\n]*{mark}){{{len(row) - 2}}}[^\r\n]*"
    return bool(re.fullmatch(rf"{line}(?:(?:\r\n?|\n){line})+", delimiter.join(row)))


def _fits(header: str, wanted: frozenset[str], delimiter: str) -> tuple[bool, int]:
    """Rate a delimiter for a header: whether it gives all wanted columns, and how many columns."""
    try:
        names = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error:
        names = []
    return wanted <= set(names), len(names)


def check_once(names: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if names.count(name) > 1:
            fix = "Rename one of them, or leave it out."
            raise DataError("has a column twice", value=name, fix=fix)


def text_or_bytes(content: bytes) -> str | bytes:
    """Return UTF-8 as text, or other bytes as they are. Those are refused later, with their row."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


@contextmanager
def legible(path: Path) -> Iterator[None]:
    """Turn a failure to read into an error that says what the file is, or what is wrong."""
    try:
        yield
    except (ValueError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's own error
        with path.open("rb") as stream:
            start = stream.read(16)
        packed = path.suffix.lower() == ".gz"
        cut = "is cut off or damaged", "Copy it again, as a whole."
        if packed and not start.startswith(b"\x1f\x8b"):
            problem, fix = "is no gzip file, though its name ends in .gz", "Leave .gz out of it."
        elif packed and not isinstance(error, ValueError):
            problem, fix = cut
        else:
            with _unpacked(path, "rb") as stream:
                start = stream.read(16)
            known = (one for one in MAGIC if start.startswith(one[0]))
            kind, fix = next(((f"is {what}", fix) for _, what, fix in known), ("", ""))
            if isinstance(error, UnicodeDecodeError):
                problem = kind or f"line {_bad_line(path)} is not UTF-8"
                fix = fix or f"{UTF8} It may be Latin-1 or Windows-1252 as yet."
            elif path.suffix.lower().lstrip(".") in kind.lower():
                problem, fix = cut
            else:
                problem = kind or "is not what its name says, or is cut off"
                fix = fix or "Check that the file is whole and that its name ends as its format."
        raise DataError(problem, fix=fix) from None


def _bad_line(path: Path) -> int:
    """Return the first line that is not UTF-8."""
    with _unpacked(path, "rb") as stream:
        bad = (n for n, line in enumerate(stream, 1) if isinstance(text_or_bytes(line), bytes))
        return next(bad, 1)


def _text(path: Path) -> Any:
    """Open the file as UTF-8 text, without a byte order mark, with its own line ends."""
    return _unpacked(path, "rt", encoding="utf-8-sig", newline="")


def _unpacked(path: Path, mode: str, **text: str) -> Any:
    opened: Any = gzip.open if path.suffix.lower() == ".gz" else Path.open
    return opened(path, mode, **text)


READERS: dict[str, Reader] = {
    ".jsonl": json_rows,
    ".json": json_rows,
    ".csv": _csv_rows,
    ".tsv": partial(_csv_rows, delimiter="\t"),
}
LOADED = (".parquet", ".arrow")  # readers that are loaded when a site has such a file


def reader_of(path: Path, key: str) -> Reader:
    """Return the reader for a file, by its name.

    Raises:
        DataError: the name's ending is not known.
    """
    suffix = path.suffix.lower()
    inner = Path(path.stem).suffix.lower()
    if suffix == ".gz" and inner in READERS:
        suffix = inner
    if suffix in LOADED:
        reader: Reader = load(SOURCES, suffix[1:], key=key)
        return reader
    if suffix not in READERS:
        fix = f"Expected {', '.join((*READERS, *LOADED))} ({', '.join(READERS)} also as .gz),"
        fix += " or a folder written by save_to_disk."
        raise DataError("unknown format", value=path.suffix, fix=fix)
    return READERS[suffix]
