"""Apply a site's own function to each text before it is used, for example to take names out.

It is a map of single texts (law 2): the function gets one text and nothing else. Whatever it does
to one, or fails to do, changes no other. A function that remembers texts, say to number the names
in the order in which they come, would break that from within; `remembers` finds the usual ones.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.data.encode import conversation
from fedpriv.data.population import some
from fedpriv.data.read import UNIT, quiet
from fedpriv.errors import DataError

if TYPE_CHECKING:
    import datasets

log = logging.getLogger(__name__)
Transform = Callable[[str], str]
MADE_UP = (
    "Mr. John Example, born 1 May 1970, was seen today with Mrs. Example.",
    "Dr. Ann Sample called 555-0100 about Peter Placeholder, MRN 0000001.",
    "No name is in here.",
)


def find_transform(name: str, key: str) -> Transform:
    """Return the function that ``package.module:function`` names.

    Args:
        key: the setting that names it, for errors.

    Raises:
        DataError: it can't be imported, or there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        found: Transform | None = getattr(import_module(module), function, None)
    except Exception as error:  # the module may do anything
        problem = f"can't be imported ({type(error).__name__})"
        fix = "Install its package in this environment, or put its folder into PYTHONPATH."
        raise DataError(problem, key=key, value=name, fix=fix) from None
    if not callable(found):
        problem, fix = "there is no such function in the module", "package.module:function."
        raise DataError(problem, key=key, value=name, fix=f"Write it as {fix}")
    return found


def transformed(
    records: datasets.Dataset, rows: Sequence[int], name: str, cache_dir: Path, key: str
) -> datasets.Dataset:
    """Return the records with every text as the function returns it; ids and labels stay.

    Of each message only role and content are kept.

    If the function fails on a record, or returns no text for it, the record has no texts and so
    contributes nothing. It stays in its unit; the site's own log has the row and the error's class.

    Args:
        records: rows of `read_records`.
        rows: their numbers in the source, for the log.
        name, key: see `find_transform`.

    Raises:
        DataError: see `find_transform`.

    Privacy:
        Each text is given to the function alone. Text and message of an error are never shown.
    """
    from datasets import Dataset

    transform = find_transform(name, key)
    if not len(records):
        return records
    failed: dict[int, str] = {}

    def mapped() -> Iterator[dict[str, Any]]:
        for row, record in zip(rows, records, strict=True):
            try:
                yield {field: as_seen(field, record[field], transform) for field in record}
            except (KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as error:  # a library in another language may panic
                failed[row] = type(error).__name__
                yield {field: record[field] if _kept(field) else None for field in record}

    with quiet():
        made = Dataset.from_generator(
            mapped,
            features=records.features,
            cache_dir=str(cache_dir),
            fingerprint=secrets.token_hex(16),  # never what another version of the function made
        )
    if failed:
        kinds = ", ".join(f"{kind}: {count}" for kind, count in Counter(failed.values()).items())
        log.warning(
            "%s failed on %d of %d rows, which contribute nothing (%s): %s",
            *(name, len(failed), len(records), kinds, some(list(failed))),
        )
    return made


def remembers(transform: Transform) -> bool:
    """Tell whether made-up texts come out differently in another order: by memory, or by chance.

    Raises:
        Exception: whatever the function raises.
    """
    first = [_text(text, transform) for text in MADE_UP]
    return first != [_text(text, transform) for text in reversed(MADE_UP)][::-1]


def as_seen(field: str, value: Any, transform: Transform) -> Any:
    """Return a record's field as the function makes it."""
    if _kept(field) or value is None:
        return value
    if field != "messages":
        return _text(value, transform)
    talk = conversation(value)  # if it is None, no example is made anyway
    return talk and [
        {"role": one["role"], "content": _text(one["content"], transform)} for one in talk
    ]


def _kept(field: str) -> bool:
    return field in (UNIT, "label")


def _text(text: str, transform: Transform) -> str:
    made: Any = transform(text)
    if not isinstance(made, str):
        raise TypeError
    return made.encode("utf-8", "replace").decode("utf-8")
