"""Keep what someone outside a ledger's backup remembers of it.

A copy that was restored from a backup is whole in itself. It is recognised by a head that was seen
later: the server's last one, the site's last report, or a witness, a file on another disk to which
the ledger adds a line for every row before anything is released. A witness that is stale or lies
can make a site stop. `administration.recover` alone believes what it says was taken, and only in
lines that are sealed. The seals are HMAC-SHA256, under a key that lies in the ledger's folder and
that the witness's disk never sees. Each seal is over the one before, and the first over a number of
this file alone, so lines of two files of one ledger can't be mixed. If ledger and witness are
restored together, or the witness's last lines are cut off when an older copy is restored, only a
head of a report or a server can tell: an assumption of the claim.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from fedpriv.errors import LedgerError, LedgerInUseError
from fedpriv.files import canonical_json, try_lock, write_atomic
from fedpriv.privacy.ledger.chain import Head
from fedpriv.secret import load_or_create_secret, load_secret

KEY, KEY_BYTES = "witness.key", 32  # beside the ledgers of a site, for all of them
_NAME = "key of the witness"
_LEAKED = "Anybody who has read it can write a witness that forgets what was paid."
_Amount = Annotated[float, Field(ge=0, le=sys.float_info.max)]


@dataclass(frozen=True)
class Sighting:
    """A row as it was seen, and what plans had taken of the rule's currency by then.

    Attributes:
        used: the amount used by all plans; `open`, by those that were not closed, in full.
        declared_size, delta: those of the ledger's terms by then.
    """

    rows: int
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    used: tuple[_Amount, ...]
    open: tuple[_Amount, ...]
    declared_size: Annotated[int, Field(ge=1)]
    delta: Annotated[float, Field(gt=0)]

    @property
    def head(self) -> Head:
        return Head(self.rows, self.hash)


_SIGHTING = TypeAdapter(Sighting)


def seal_key(ledger: Path, *, new: bool = True) -> bytes:
    """Return the key that seals what a ledger tells its witness.

    Args:
        ledger: its file; the key lies beside it, and is backed up with it.
        new: make the key if there is none.

    Raises:
        LedgerError: there is no key, it can't be used, or others may read it.
    """
    path = ledger.resolve().parent / KEY
    if new:
        key = load_or_create_secret(
            path, lambda: secrets.token_bytes(KEY_BYTES), name=_NAME, leaked=_LEAKED
        )
    else:
        key = load_secret(path, name=_NAME, leaked=_LEAKED)
    if len(key) != KEY_BYTES:
        raise LedgerError(f"{path}: is not the key of a witness, or is damaged. Restore it.")
    return key


class Witness:
    """A witness file: a line that names the population, and one for each row.

    Use `Witness.start` or `Witness.read`.

    Attributes:
        seen: the rows in it, oldest first.
        sealed: the number of lines, from the first on, that the key's owner wrote.
    """

    def __init__(self, path: Path, dataset_id: str, start: str, key: bytes) -> None:
        self.path, self.dataset_id, self._key = path.resolve(), dataset_id, key
        self.seen: list[Sighting] = []
        self.sealed = 0
        self._seal = start  # the seal of the last line
        self._last, self._size = b"", 0  # the last line, and the bytes of all whole lines
        self._file = -1

    def hold(self) -> None:
        """Hold the file for one ledger alone: a copy of the ledger would add lines of its own.

        Raises:
            LedgerInUseError: another ledger has it.
            LedgerError: it can't be opened.
        """
        try:
            self._file = os.open(self.path, os.O_RDWR)
            held = try_lock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self.close()
            raise _unwritable(self.path, error) from None
        if not held:
            self.close()
            raise LedgerInUseError(
                f"{self.path}: is the witness of a ledger that is open, and of no copy of it."
            )

    def close(self) -> None:
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @classmethod
    def start(cls, path: Path, dataset_id: str, seen: Sequence[Sighting], key: bytes) -> Witness:
        """Replace the file by a new one. If it is a link, the file that it names is replaced.

        Args:
            key: see `seal_key`.

        Raises:
            LedgerError: it can't be written.
        """
        start = secrets.token_hex(KEY_BYTES)
        made = cls(path, dataset_id, start, key)
        first = json.dumps({"witness of": dataset_id, "start": start}) + "\n"
        lines = made._lines(seen)
        try:
            content = first.encode() + b"".join(line for line, _ in lines)
            write_atomic(made.path, content, mode=0o600)
        except OSError as error:
            raise _unwritable(made.path, error) from None
        made._size = len(first)
        made._take(seen, lines)
        return made

    @classmethod
    def read(cls, path: Path, key: bytes = b"") -> Witness:
        """Read a witness, without a line that a crash cut short.

        Args:
            key: see `seal_key`; empty if the witness is believed only in which rows it saw.

        Raises:
            LedgerError: no such file, or no witness.
        """
        try:
            first, *lines = path.read_bytes().split(b"\n")[:-1]
            named = json.loads(first)
            dataset_id, start = named["witness of"], named.get("start", "")
            if type(dataset_id) is not str or type(start) is not str:
                raise ValueError("population")
            seen = [_SIGHTING.validate_json(line, strict=True) for line in lines]
            if [s.rows for s in seen] != list(range(1, len(seen) + 1)) or not seen:
                raise ValueError("rows")
            if any(len(s.used) != len(s.open) or s.delta >= 1 / s.declared_size for s in seen):
                raise ValueError("amounts")
        except OSError as error:
            raise LedgerError(f"{path}: can't be read as a witness ({error.strerror}).") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise LedgerError(f"{path}: is not the witness of a ledger, or is damaged.") from None
        found = cls(path, dataset_id, start, key)
        made = found._lines(seen)
        found._take(seen, made)
        written = (line + b"\n" == one for line, (one, _) in zip(lines, made, strict=True))
        found.sealed = next((at for at, holds in enumerate(written) if not holds), len(seen))
        found._size = sum(len(line) + 1 for line in (first, *lines))
        return found

    def add(self, seen: Iterable[Sighting]) -> None:
        """Add lines, durably, to a file that is held.

        Raises:
            LedgerError: they can't be written, or the file is not the one that was left; nothing
                is to be released.
        """
        fresh = list(seen)
        lines = self._lines(fresh)
        content = b"".join(line for line, _ in lines)
        begun = False
        try:
            rest = os.pread(self._file, 2**16, self._size - len(self._last))
            same = os.path.samestat(os.fstat(self._file), self.path.stat())
            if not same or not rest.startswith(self._last) or b"\n" in rest[len(self._last) :]:
                raise LedgerError(
                    f"{self.path}: is not the witness that this ledger left. Nothing is released"
                    " until the right one is there."
                )
            begun = True
            os.ftruncate(self._file, self._size)  # removes a line that was cut short
            if os.pwrite(self._file, content, self._size) < len(content):  # the disk is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # whole lines that nobody counts would look like another's
                if begun:
                    os.ftruncate(self._file, self._size)
            raise _unwritable(self.path, error) from None
        self._take(fresh, lines)

    def _take(self, seen: Sequence[Sighting], lines: Sequence[tuple[bytes, str]]) -> None:
        """Remember lines that are in the file."""
        self.seen += seen
        self.sealed = len(self.seen)
        self._size += sum(len(line) for line, _ in lines)
        if lines:
            self._last, self._seal = lines[-1]

    def _lines(self, seen: Iterable[Sighting]) -> list[tuple[bytes, str]]:
        """Return the lines that go after the last one, each with its seal."""
        made, before = [], self._seal
        for sighting in seen:
            fields = asdict(sighting)
            content = canonical_json([self.dataset_id, before, fields])
            before = hmac.new(self._key, content, hashlib.sha256).hexdigest()
            made.append((f"{json.dumps({**fields, 'seal': before})}\n".encode(), before))
        return made


def _unwritable(path: Path, error: OSError) -> LedgerError:
    return LedgerError(
        f"{path}: the witness can't be written ({error.strerror}). Nothing is released until it"
        " can be."
    )
