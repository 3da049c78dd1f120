"""Hold disk space for what a site writes, so that nothing else takes it in the meantime."""

from __future__ import annotations

import errno
import math
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from fedpriv.files import write_atomic

LARGEST = 2**22  # bytes of a report or an account; a job of 10,000 rounds has a tenth of it
_NAMES = 2**14  # bytes of folders and names


def full_disk(folder: Path) -> str:
    """Say to people at the site that a folder's disk is full; return nothing if it is not."""
    free = shutil.disk_usage(folder).free
    text = f"{folder}: the disk is full ({free:,} bytes are free). Make room: what is reserved"
    lasts = "lasts for the site's answers, but not for its next start."
    return "" if free >= LARGEST else f"{text} {lasts}"


class HeldSpace:
    """Hold disk space for files that grow, so that nothing else can take it in the meantime.

    A file without a name takes the space. It gets shorter while something is written, and
    afterwards it takes what is left.

    Args:
        folder: a folder on the file system of the files.
        most: the bytes that the files may grow by.
        grown: returns the bytes that they have grown by.

    Attributes:
        held: bytes that are allocated now.

    Raises:
        OSError: the disk does not have `most` free bytes.
    """

    def __init__(self, folder: Path, most: int, grown: Callable[[], int]) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._most, self._grown, self.held = most, grown, 0
        self._lock = threading.RLock()
        self._release = weakref.finalize(self, self._file.close)  # closes it at the latest then
        self._hold()

    def close(self) -> None:
        """Give all space back for good."""
        self._most = self.held = 0
        self._release()

    @contextmanager
    def given(self, count: int) -> Iterator[None]:
        """Give `count` bytes back to the disk while the block writes."""
        with self._lock:
            self._keep(max(0, self.held - count))
            try:
                yield
            finally:
                try:
                    self._hold()
                except OSError:  # another program was quicker: less is held from now on
                    os.ftruncate(self._file.fileno(), self.held)
                    with suppress(OSError):
                        self._hold(shutil.disk_usage(self._file.fileno()).free)

    def _hold(self, free: float = math.inf) -> None:
        left = min(max(0, self._most - self._grown()), self.held + free)
        if left > self.held:
            os.posix_fallocate(self._file.fileno(), self.held, int(left) - self.held)
            self.held = int(left)
        self._keep(int(left))

    def _keep(self, count: int) -> None:
        if count < self.held:
            os.ftruncate(self._file.fileno(), count)
            self.held = count


def write_beside(
    path: Path, content: str, mode: int = 0o644, held: HeldSpace | None = None
) -> None:
    """Replace a file that is written beside an answer.

    Args:
        held: the space held for such files; None while no site is open.

    Raises:
        OSError: the disk fails, or the file is larger than any may be.
    """
    if len(data := content.encode()) > LARGEST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    with nullcontext() if held is None else held.given(len(data) + _NAMES):
        write_atomic(path, data, mode)
