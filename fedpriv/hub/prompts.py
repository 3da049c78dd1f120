"""Prompts for a run's model: typed, or from a file, where each may have references."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedpriv.data.encode import conversation
from fedpriv.data.read import read_records
from fedpriv.errors import ConfigError, DataError
from fedpriv.synthetic.continuation import prompt_of

LINES = ".txt"
PAIR = {"prompt", "completion"}


@dataclass(frozen=True)
class Prompt:
    """The beginning that a model continues.

    Attributes:
        text: a text, or a conversation as JSON. For a chat model, a text is what the user says.
        references: what people wrote after it, each as good as the others.
    """

    text: str
    references: tuple[str, ...] = ()


def read_prompts(path: Path, columns: Mapping[str, str], key: str) -> list[Prompt]:
    """Read the prompts in a file: the lines of a .txt, or the records of any other, as jobs do.

    Args:
        columns: field → column, as in the job.
        key: the option that names the file.

    Raises:
        DataError: the file can't be read, lacks a column, or holds no prompt.

    Privacy:
        What is made from a file is as confidential as the file.
    """
    if path.suffix == LINES:
        try:
            found = path.read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError:
            raise DataError("is not UTF-8", file=path, key=key, fix="Save it as UTF-8.") from None
        except OSError as error:
            raise DataError(f"can't be read: {error.strerror}", file=path, key=key) from None
    else:
        (field,) = columns.keys() - {"completion"}
        rows = _rows(path, {field: columns[field]}, key)
        return _not_empty([Prompt(prompt_of(row[field], field)) for row in rows], path, key)
    return _not_empty(list(map(Prompt, found)), path, key)


def read_pairs(path: Path, columns: Mapping[str, str], key: str) -> list[Prompt]:
    """Read prompts with their references. Records with the same prompt become one, in file order.

    Args:
        columns, key: as in `read_prompts`.

    Raises:
        DataError: as in `read_prompts`.
        ConfigError: the job has no pairs of prompts and completions.

    Privacy:
        As in `read_prompts`.
    """
    if set(columns) != PAIR:
        of = "a job of prompts and completions, which can be compared with what people wrote"
        fix = "Give prompts alone with --prompts."
        raise ConfigError(f"is for {of}", key=key, value=str(path), fix=fix)
    found: dict[str, list[str]] = {}
    for row in _rows(path, columns, key):
        asked, said = (conversation(row[field]) for field in ("prompt", "completion"))
        prompt = prompt_of(row["prompt"], "prompt")
        written = "\n".join(turn["content"] for turn in said) if said else row["completion"] or ""
        if prompt and written.strip() and bool(asked) == bool(said):  # else nothing is learned
            found.setdefault(prompt, []).append(written)
    pairs = [Prompt(text, tuple(written)) for text, written in found.items()]
    return _not_empty(pairs, path, key)


def _rows(path: Path, columns: Mapping[str, str], key: str) -> Iterator[Mapping[str, str]]:
    with tempfile.TemporaryDirectory() as cache:
        yield from read_records(path, columns, unit="record", cache_dir=Path(cache), key=key)


def _not_empty(found: list[Prompt], path: Path, key: str) -> list[Prompt]:
    prompts = [one for one in found if one.text.strip()]
    if not prompts:
        raise DataError("holds no prompt", file=path, key=key, fix="Name another file.")
    return prompts
