"""`fedpriv-client generate` and `classify`: what the site model answers to texts and to files.

Privacy
    Answers are as confidential as the site's records: a file of them is its owner's alone (law 16).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import track

from fedpriv.errors import ConfigError, DataError, RunningError
from fedpriv.files import try_lock
from fedpriv.serving.answers import Answer, Answering

Record = dict[str, Any]
ADDED = ("completion", "label", "probabilities")  # to a record, which may have such fields


def answer_file(
    answering: Answering,
    answer: Answer,
    source: Path,
    out: Path,
    *,
    field: str | None,
    batch_size: int,
) -> int:
    """Answer to each record of a JSONL file, in the order of the file, with a bar at a terminal.

    Each line of the answers holds the record, its number as `row`, and the answer. Answers that are
    there already stay, and the missing ones are added. A half line, left by an earlier run that was
    stopped, is cut off.

    Args:
        field: the field of a record that holds the text; by default the job's.

    Returns:
        How many answers were added.

    Raises:
        DataError: a record can't be read.
        ConfigError: the file of answers is about other records.
        RunningError: another process writes that file.
    """
    records = _read(source)
    field = field or answering.field
    texts = [
        _text(answering.text_of, record.get(field), f"line {row}", file=source, key=field)
        for row, record in enumerate(records, 1)
    ]
    with os.fdopen(_opened(out), "r+b") as stream:
        if not try_lock(stream.fileno(), fcntl.LOCK_EX):
            raise RunningError(
                f"{out}: another process is writing this file. Wait, or name another file."
            )
        done = _resume(stream, records, source, out)
        batches = range(done - done % batch_size, len(records), batch_size)
        console = Console(stderr=True)
        hidden = not console.is_terminal
        for first in track(batches, "Answering", console=console, transient=True, disable=hidden):
            found = answer(texts[first : first + batch_size], first)
            for row in range(max(first, done), first + len(found)):
                line = records[row] | {"row": row + 1} | found[row - first]
                stream.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            stream.flush()
        os.fsync(stream.fileno())
    return len(records) - done


def run(
    answering: Answering,
    answer: Answer,
    source: Path | None,
    out: Path | None,
    *,
    field: str | None,
    batch_size: int,
) -> None:
    """Answer the text of the standard input; or answer a file into another one, with a bar.

    The text is not an argument of the command, because every user of the machine can see arguments.

    Raises:
        ConfigError: one file was named without the other, or there is no text.
    """
    if bool(source) != bool(out):
        raise ConfigError("expected --in and --out, or neither", key="--in")
    if source is None or out is None:
        if sys.stdin.isatty():
            print("Type the text, and end it with Ctrl-D:", file=sys.stderr)
        text = sys.stdin.read().strip()
        if not text:
            raise ConfigError("expected a text on the standard input", key="--in")
        text = _text(answering.as_trained, text, "the standard input")
        print(_shown(answer([text], 0)[0]))
        return
    added = answer_file(answering, answer, source, out, field=field, batch_size=batch_size)
    confidential = "They are as confidential as this site's records."
    print(f"{added} answers were added to {out}. {confidential}", file=sys.stderr)


def _opened(out: Path) -> int:
    """Open a file of answers. It must be new or readable by its owner only, and not a link."""
    problem = "can be read by others, so answers are not written to it"
    try:
        file = os.open(out, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        if not os.fstat(file).st_mode & 0o077:
            return file
        os.close(file)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        problem = f"can't be written: {why}"
    raise ConfigError(problem, file=out, key="--out", fix="Name another file.")


def _shown(found: Record) -> str:
    if "completion" in found:
        return str(found["completion"])
    shares = sorted(found["probabilities"].items(), key=itemgetter(1), reverse=True)
    return "\n".join(f"{share:.3f}  {label}" for label, share in shares)


def _read(source: Path) -> list[Record]:
    try:
        lines = source.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"can't be read: {error.strerror}", file=source, key="--in") from None
    return [_record(line, source, row) for row, line in enumerate(lines, 1)]


def _record(line: bytes, source: Path, row: int) -> Record:
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(line), dict):
            return found
    fix = "Correct the file: JSONL has one object per line."
    raise DataError(f"line {row} is not a JSON object", file=source, key="--in", fix=fix)


def _text(read: Callable[[Any], str], value: Any, place: str, **where: Any) -> str:
    try:
        return read(value)
    except ValueError as error:
        fix = "Name the field with --field, or take the text out."
        raise DataError(f"{place} has {error}", fix=fix, **where) from None


def _resume(stream: IO[bytes], records: Sequence[Record], source: Path, out: Path) -> int:
    """Keep only whole lines of answers to these records, and return how many there are."""
    *lines, half = stream.read().split(b"\n")
    known = [record | {"row": row} for row, record in enumerate(records, 1)]
    for row, line in enumerate(lines or [half] if half else lines):
        try:
            there = json.loads(line)
            same = all(there[key] == known[row][key] for key in known[row].keys() - {*ADDED})
        except (ValueError, LookupError, TypeError):
            same = False
        if not same:
            problem = f"line {row + 1} is not an answer to that line of {source}"
            fix = "Name another file, or move this one away."
            raise ConfigError(problem, file=out, key="--out", fix=fix)
    stream.truncate(stream.seek(sum(len(line) + 1 for line in lines)))
    return len(lines)
