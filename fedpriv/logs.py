"""What the processes write to their logs: for people or for programs, never records.

An exception that fedpriv did not raise on purpose may quote a record in its text. So its text
is left out: class, files and lines are there. A message may quote what another machine sent. So
it is one line and not a long one, whatever is in it.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

_LONGEST = 1000  # characters of a message


def discreet(error: BaseException) -> str:
    """Where an error was raised and of which class it is, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return "\n".join([*lines, f"  {type(error).__name__}"])


class _Discreet(logging.Formatter):
    def formatException(self, ei: object) -> str:  # noqa: N802  # logging's own name
        assert isinstance(ei, tuple)
        return discreet(ei[1])


class PlainFormatter(_Discreet):
    """A line a message: time, level, text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(_Discreet):
    """A JSON object a line: time (UTC), level, logger, message, and trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def one_line(text: str) -> str:
    """A text without control characters, cut where it gets long."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in _cut(text)
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def configure(*, as_json: bool) -> None:
    """Send the log to standard error; libraries say only what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    handler.addFilter(_is_ours_or_wrong)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def silence(library: str) -> None:
    """Take a library's own handlers away; it tells of errors alone, where our log goes."""
    logger = logging.getLogger(library)
    logger.handlers.clear()
    logger.setLevel(logging.ERROR)


def _is_ours_or_wrong(record: logging.LogRecord) -> bool:
    return record.name.startswith("fedpriv") or record.levelno >= logging.ERROR
