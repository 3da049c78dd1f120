"""One process at a time in a folder, and a file in it that says how the process is doing."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal

from fedpriv.errors import RunningError
from fedpriv.files import try_lock
from fedpriv.logs import one_line

# The states of a coordinator and of a site's connection, and what a site does.
ServerState = Literal["preparing", "waiting", "running", "finished", "stopped"]
Connection = Literal["connecting", "connected", "waiting", "lost", "none"]
Answering = Literal[
    "looking at a proposed job", "reporting what was spent", "keeping an adapter",
    "computing a step", "adding to a secure sum",
]  # fmt: skip
Activity = Literal[
    "starting", "reading records", "waiting for the server", "waiting for the next job", "stopped",
    Answering,
]  # fmt: skip
STATUS, LOCK = "status.json", "process.lock"
_GLANCE = 10.0  # seconds; `is_running` holds the lock for an instant


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Be the only process in a folder while the context lasts. A killed process blocks nobody.

    Raises:
        RunningError: another one runs.
    """
    path, deadline = folder / LOCK, time.monotonic() + _GLANCE
    while True:
        with path.open("a") as stream:
            if try_lock(stream, fcntl.LOCK_EX) and _is_at(stream, path):
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)  # while nobody else can have locked it
                return
            works = not try_lock(stream, fcntl.LOCK_SH) and _is_at(stream, path)
            if works or time.monotonic() > deadline:
                raise RunningError(f"{folder}: another process works in it already.")
        time.sleep(0.02)  # the other process only looked


def is_running(folder: Path) -> bool:
    """Tell whether a process works in a folder."""
    try:
        with (folder / LOCK).open("r") as stream:
            return not try_lock(stream, fcntl.LOCK_SH)
    except OSError:
        return False


def _is_at(stream: IO[str], path: Path) -> bool:
    """Tell whether an open file still has that name. Its former holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


class Status:
    """Keep the newest state of a process. Nothing in it is computed from records.

    Its text may say what is wrong on this machine, so it stays on the machine.

    Args:
        folder: the process's folder.
        facts: JSON values to begin with.
    """

    def __init__(self, folder: Path, **facts: Any) -> None:
        self.folder, self._path = folder, folder / STATUS
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {"pid": os.getpid(), "started": timestamp()}
        self.update(**facts)

    def update(self, **facts: Any) -> None:
        """Write what has changed. If nothing has, nothing is written.

        A `state`, a `connection` and an `activity` have only the values of the types above.
        """
        with self._lock:
            if all(key in self._facts and self._facts[key] == facts[key] for key in facts):
                return
            short = {key: one_line(x) if isinstance(x, str) else x for key, x in facts.items()}
            self._facts.update(short, changed=timestamp())
            temporary = self._path.with_suffix(".tmp")
            try:
                temporary.write_text(json.dumps(self._facts, indent=2) + "\n", encoding="utf-8")
                temporary.replace(self._path)
            except OSError:  # a full disk stops the work itself, with a reason
                temporary.unlink(missing_ok=True)


def read_status(folder: Path) -> dict[str, Any]:
    """Return what a folder's process said last, and whether it still runs."""
    try:
        facts = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        facts = None
    said = facts if isinstance(facts, dict) else {}
    return {"running": None, "pid": None} | said | {"running": is_running(folder)}


def timestamp() -> str:
    """Return the date and time now, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def stop_on_terminate() -> None:
    """Let a request to end (SIGTERM) do what Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
