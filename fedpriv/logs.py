"""Logs of the processes, for people or for programs. They never hold records.

An exception that fedpriv did not raise on purpose may quote a record in its text. So its text is
left out, and only class, files and lines are logged. A message may quote what another machine sent.
So it becomes one line of limited length. A process to which another machine may send as much as it
likes writes only a limited number of bytes a day.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

_LONGEST = 1000  # characters of a message
_FRAMES = 50  # of a trace, the innermost ones
BURST, PACE = 2**20, 200.0  # bytes of a paced log at once, and per second: 17 MB a day


def discreet(error: BaseException) -> str:
    """Say where an error was raised and of which class it is, without its text."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    lines = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    return "\n".join([*lines, f"  {type(error).__name__}"])


class _Discreet(logging.Formatter):
    def formatException(self, ei: object) -> str:  # noqa: N802  # logging's own name
        assert isinstance(ei, tuple)
        return discreet(ei[1])


class PlainFormatter(_Discreet):
    """Write one line for each message: time, level, text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        record.message = one_line(record.message)
        return super().formatMessage(record)


class JsonFormatter(_Discreet):
    """Write one JSON object a line: time (UTC), level, logger, message, and trace if any."""

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
    """Return a text with control characters escaped, cut if it is long."""
    return printable(_cut(text))


def printable(text: str) -> str:
    """Return a text with control characters escaped."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


class PacedHandler(logging.StreamHandler[TextIO]):
    """Write `burst` bytes at once, then at most `pace` bytes a second; count lines left out.

    Args:
        clock: returns seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        burst: float = BURST,
        pace: float = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream)
        self._burst, self._pace, self._clock = burst, pace, clock
        self._room, self._then, self._left_out = burst, clock(), 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it. Called under the handler's lock."""
        now = self._clock()
        self._room = min(self._burst, self._room + (now - self._then) * self._pace)
        self._then = now
        lines = [record]
        if self._left_out:
            text = f"{self._left_out} lines were left out: this log has grown too fast."
            told = (__name__, logging.WARNING, __file__, 0, text, (), None)
            lines.insert(0, logging.LogRecord(*told))
        size = sum(len(self.format(line).encode()) + 1 for line in lines)
        if size > self._room:
            self._left_out += 1
            return
        self._room, self._left_out = self._room - size, 0
        for line in lines:
            super().emit(line)


def configure(*, as_json: bool, paced: bool = False) -> None:
    """Send the log to standard error. Libraries log only errors.

    Args:
        paced: whether to limit the log's size, see `PacedHandler`.
    """
    handler = PacedHandler(sys.stderr) if paced else logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    handler.addFilter(
        lambda record: record.name.startswith("fedpriv") or record.levelno >= logging.ERROR
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def silence(library: str) -> None:
    """Remove a library's own handlers. It logs only errors, to where our log goes."""
    logger = logging.getLogger(library)
    logger.handlers.clear()
    logger.setLevel(logging.ERROR)
