"""Write files so that a reader finds the old one or the new one, never half of each."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def write_atomic(path: Path, content: str | bytes, mode: int = 0o644) -> None:
    """Replace `path` by `content` so that a crash leaves the old file or the new one."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, mode) as temporary:
        temporary.write_bytes(data)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644, *, new: bool = False) -> Iterator[Path]:
    """Yield an empty file to write into. It takes the place of `path` when the block ends.

    The bytes are on disk before the name points at them, and the name is on disk before this
    returns. After an error `path` is as it was.

    Args:
        new: whether nothing may have that name yet.

    Raises:
        FileExistsError: with `new`, something has that name by the end of the block.
    """
    writer = f"{os.getpid()}-{threading.get_native_id()}"  # two threads may write one file
    temporary = path.with_name(f".{path.name}.{writer}.tmp")
    temporary.unlink(missing_ok=True)  # left by a killed process, perhaps with another mode
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    allowed = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.close(descriptor)
    try:
        yield temporary
        with temporary.open("rb") as stream:  # by name: some writers put another file there
            os.fchmod(stream.fileno(), allowed)
            os.fsync(stream.fileno())
        if new:
            _name(temporary, path)
        else:
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _name(temporary: Path, path: Path) -> None:
    """Give a file a name that nothing has."""
    try:
        path.hardlink_to(temporary)  # if two do this at once, one fails
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.replace(path)
    else:
        temporary.unlink()


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to write into. It takes the place of `path` when the block ends.

    Only its owner may read the folder and all that is in it (0700, 0600), and all of it is on disk
    before the name points at it. After an error, or Ctrl-C, `path` is as it was. What was there
    before is put aside for a moment; if the machine fails in that moment, the next writer puts it
    back. Missing folders above `path` are made, and removed again after an error.
    """
    above = [folder for folder in path.absolute().parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    aside = path.with_name(f".{path.name}.old")
    if aside.exists() and not path.exists():
        aside.rename(path)
    for left in (temporary, aside):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir(mode=0o700)
    try:
        yield temporary
        for item in temporary.rglob("*"):
            if item.is_dir():
                item.chmod(0o700)
                sync_folder(item)
                continue
            with item.open("rb") as stream:
                os.fchmod(stream.fileno(), 0o600)
                os.fsync(stream.fileno())
        sync_folder(temporary)
        if path.exists():
            path.rename(aside)
        temporary.rename(path)
    except BaseException:
        if aside.exists() and not path.exists():
            aside.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in above:
            with contextlib.suppress(OSError):  # somebody else has put something there
                folder.rmdir()
        raise
    sync_folder(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Replace `path` by indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2) + "\n")


def finite_json(value: Any) -> Any:
    """Return a value with only the numbers that JSON has: those that are not finite become None."""
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def canonical_json(value: Any) -> bytes:
    """Return the canonical bytes of a JSON value, for digests: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a JSON object, for `json.loads`, and refuse equal keys: readers differ on them.

    Raises:
        ValueError: a key is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def sha256(content: bytes) -> str:
    """Return ``sha256:`` and the hex digest. Every digest is written like this."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def file_digest(path: Path) -> str:
    """Return SHA-256 of a file, as `sha256`.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def try_lock(file: int | IO[str], kind: int) -> bool:
    """Take a lock (`fcntl.LOCK_EX` or `fcntl.LOCK_SH`) on an open file, if nobody else has it.

    Raises:
        OSError: this file system has no locks.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def private_folder(path: Path) -> Path:
    """Make a folder that only its owner may read (0700), for anything that holds records."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path
