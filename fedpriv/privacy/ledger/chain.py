"""Keep a ledger as a file of append-only rows, each with the hash of the one before.

Storage is SQLite, held exclusively: by SQLite's own locks, and by a lock on the file that a
process keeps even where another part of it opens and closes the same file.
`synchronous=EXTRA` with a rollback journal: after a commit returns, the rows survive power loss,
the deletion of the journal included. A write-ahead log is not used, because a copy of the main
file alone would then be an older ledger that looks whole.

An edited or missing row breaks the chain. A copy restored from a backup is whole in itself;
it is noticed by a witness outside the backup, see `Chain.check_witness`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedpriv.errors import LedgerCorruptError, LedgerError, LedgerInUseError
from fedpriv.files import canonical_json, try_lock

APPLICATION = 0x66707631  # "fpv1", in the file's header
FORMAT = 2
GENESIS = "0" * 64
GLANCE = 10.0  # seconds that somebody may look at a ledger while another waits to spend
# Errors of a damaged file. Its own bytes, which may be no text, may be quoted in them.
_UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)
_SCHEMA = (
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, body TEXT NOT NULL,"
    " hash TEXT NOT NULL) STRICT",
    "CREATE TABLE outbox (job TEXT NOT NULL, slot INTEGER NOT NULL, reply BLOB NOT NULL,"
    " PRIMARY KEY (job, slot)) STRICT",
    "CREATE TRIGGER rows_are_kept BEFORE DELETE ON rows"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER rows_are_final BEFORE UPDATE ON rows"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)


@dataclass(frozen=True)
class Head:
    """The newest row: its number (rows so far) and its hash."""

    rows: int
    hash: str


@dataclass(frozen=True)
class Row:
    """One row, with its fields as they were written."""

    number: int
    kind: str
    body: dict[str, Any]
    hash: str


class Chain:
    """An open file; holds an exclusive lock on it until `close`.

    Use `Chain.create` or `Chain.open`. Methods may be called from any thread.
    """

    def __init__(self, path: Path, *, reading: bool = False, new: bool = False) -> None:
        self.path = path.absolute()
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._reading = reading
        self._hashes = [GENESIS]
        self._file = _lock(path, reading=reading)
        with on_error(partial(os.close, self._file)):
            if new and os.fstat(self._file).st_size:  # looked at under the lock
                raise LedgerError(f"{path}: already exists. Open it, or choose another path.")
            self._connection = _connect(path, reading=reading)

    @classmethod
    def create(cls, path: Path, kind: str, body: dict[str, Any]) -> Chain:
        """Make a new file with its first row.

        Raises:
            LedgerError: there is already one of that name. (An empty file never held a row and is
                used.)
        """
        chain = cls(path, new=True)
        # On an error the file is removed while the lock is held: it is this call's.
        with on_error(chain.close), on_error(path.unlink), chain.transaction():
            for statement in _SCHEMA:
                chain._connection.execute(statement)
            chain.append(kind, body, dated=True)
        return chain

    @classmethod
    def open(cls, path: Path, *, reading: bool = False) -> Chain:
        """Open a file and check the chain from its first row.

        Args:
            reading: change nothing, not even the file's mode.

        Raises:
            LedgerError: no such file, not a ledger, or of a newer format.
            LedgerInUseError: another process has it.
            LedgerCorruptError: a row was edited or is missing.
        """
        if not path.is_file():
            raise LedgerError(f"{path}: no such ledger.")
        _check_header(path)
        chain = cls(path, reading=reading)
        with on_error(chain.close), _reading(path):
            chain._check()
        return chain

    def close(self) -> None:
        """Give the lock back. Whatever is asked of a closed file afterwards fails."""
        with self.lock:
            self._connection.close()
            if self._file >= 0:
                if os.getpid() == self._pid:  # a child must not give its parent's lock back
                    fcntl.flock(self._file, fcntl.LOCK_UN)
                os.close(self._file)
                self._file = -1

    def check_file(self) -> None:
        """Check that the path still names the file that is open.

        Raises:
            LedgerCorruptError: it was moved, deleted or replaced; it is closed now, because nobody
                who opens that path next would know what went on here.
        """
        with self.lock:
            if os.getpid() != self._pid:
                raise LedgerError(f"{self.path}: was opened by another process than this one.")
            try:
                there = self._file >= 0 and os.path.samestat(os.fstat(self._file), self.path.stat())
            except OSError:
                there = False
            if not there:
                self.close()
                raise LedgerCorruptError(
                    f"{self.path}: was moved, deleted or replaced while it was open, or is closed."
                    " Nothing is released from it. Put the newest file back, and start again."
                )

    @property
    def head(self) -> Head:
        """The newest row's number and hash."""
        with self.lock:
            return Head(len(self._hashes) - 1, self._hashes[-1])

    def rows(self, after: int = 0) -> list[Row]:
        """Return every row after the first `after`, oldest first.

        Raises:
            LedgerCorruptError: one is no JSON, or can't be read any more. `History` checks that
                each is an object.
        """
        query = "SELECT number, kind, body, hash FROM rows WHERE number > ? ORDER BY number"
        with self.lock, _reading(self.path):
            found = self._connection.execute(query, (after,)).fetchall()
        try:
            return [Row(n, kind, json.loads(body), digest) for n, kind, body, digest in found]
        except (ValueError, RecursionError) as error:
            raise corrupt(self.path, f"a row is no JSON ({error})") from None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write all of a `with` block or none; it is durable when the block ends.

        Raises:
            LedgerError: the file can't be written; nothing of the block was.
        """
        with self.lock:
            if self._reading:
                raise LedgerError(f"{self.path}: is open for reading only.")
            self.check_file()
            rows = len(self._hashes)
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
                self._connection.execute("PRAGMA shrink_memory")  # pages of a reply, up to 2 MB
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if rows > 1:  # a commit that failed may have taken effect
                    with on_error(self.close):
                        self._hashes = [GENESIS]
                        self._check()
                if isinstance(error, sqlite3.Error):
                    raise LedgerError(
                        f"{self.path}: can't be written ({error}). Nothing was released."
                    ) from None
                raise

    def append(self, kind: str, body: dict[str, Any], *, dated: bool) -> None:
        """Write a row, inside a transaction.

        Args:
            dated: put the time into it, for people; nothing reads it. A row that follows a
                computation must not be dated: its hash would tell how long that took.
        """
        number, previous = len(self._hashes), self._hashes[-1]
        at = {"at": datetime.now(UTC).isoformat(timespec="seconds")} if dated else {}
        text = canonical_json({**body, **at})
        digest = row_hash(previous, kind, text)
        self._connection.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?)", (number, kind, text.decode(), digest)
        )
        self._hashes.append(digest)

    def put_reply(self, job: str, slot: int, reply: bytes, *, keep: int) -> None:
        """Put a reply into the outbox, inside a transaction. The job's last `keep` replies stay.

        Replies of other jobs are removed.
        """
        self._connection.execute("INSERT INTO outbox VALUES (?, ?, ?)", (job, slot, reply))
        self._connection.execute(
            "DELETE FROM outbox WHERE job != ? OR rowid NOT IN"
            " (SELECT rowid FROM outbox ORDER BY rowid DESC LIMIT ?)",
            (job, keep),
        )

    def reply(self, job: str, slot: int) -> bytes | None:
        """Return a reply of the outbox, or None if it is not kept.

        Raises:
            LedgerCorruptError: it can't be read, or is no reply.
        """
        query = "SELECT reply FROM outbox WHERE job = ? AND slot = ?"
        with self.lock, _reading(self.path):
            row = self._connection.execute(query, (job, slot)).fetchone()
        if row is not None and not isinstance(row[0], bytes):
            raise corrupt(self.path, f"the stored reply of slot {slot} is no reply")
        return None if row is None else row[0]

    def check_witness(self, witness: Head) -> None:
        """Compare with a head that someone outside has seen.

        A witness that is newer than this file, or on another branch, means that an older copy
        was restored. A lying witness can make a site stop, never spend.

        Raises:
            LedgerCorruptError: this file never had that head.
        """
        with self.lock:
            check_seen(self.path, self._hashes, witness, "somebody outside")

    def _check(self) -> None:
        connection = self._connection
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT:
            raise LedgerError(
                f"{self.path}: has format {version}; this fedpriv reads format {FORMAT}."
                " Install the version that wrote it. The file was not changed."
            )
        cursor = connection.execute("SELECT number, kind, body, hash FROM rows ORDER BY number")
        for number, kind, body, digest in cursor:
            if number != len(self._hashes):
                break
            if not (isinstance(kind, str) and isinstance(body, str)):
                raise corrupt(self.path, f"row {number} is no text")
            if digest != row_hash(self._hashes[-1], kind, body.encode()):
                raise corrupt(self.path, f"row {number} was edited")
            self._hashes.append(digest)
        if cursor.fetchone() is not None or len(self._hashes) == 1:
            raise corrupt(self.path, f"row {len(self._hashes)} is missing")


@contextmanager
def on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Undo something if the block ends by an error of any kind."""
    try:
        yield
    except BaseException:
        undo()
        raise


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn an error while reading into one that says what to do with the file."""
    try:
        yield
    except _UNREADABLE as error:
        raise LedgerCorruptError(
            f"{path}: can't be read as a ledger ({error})."
            " Restore it together with its newest head, or close the population."
        ) from None


def corrupt(path: Path, what: str) -> LedgerCorruptError:
    """Return the error for rows that don't add up."""
    return LedgerCorruptError(
        f"{path}: {what}. Nothing is released from it; restore the newest copy."
    )


def check_seen(path: Path, hashes: Sequence[str], seen: Head, who: str) -> None:
    """Compare rows with a head that somebody has seen.

    Args:
        hashes: the hashes of the rows, after `GENESIS`.

    Raises:
        LedgerCorruptError: they never had that head.
    """
    newest = len(hashes) - 1
    if seen.rows > newest or hashes[seen.rows] != seen.hash:
        raise LedgerCorruptError(
            f"{path}: went back in time. It holds {newest} rows, and {who} has seen row {seen.rows}"
            " with another hash or not at all. Restore the newest copy; releases made since an"
            " older one stay spent."
        )


def row_hash(previous: str, kind: str, body: bytes) -> str:
    """Return SHA-256 over the hash of the row before, the kind, and the body as canonical JSON."""
    return hashlib.sha256(b"\n".join((previous.encode(), kind.encode(), body))).hexdigest()


def _check_header(path: Path) -> None:
    """Look at a file before SQLite may touch it.

    Raises:
        LedgerError: it can't be opened, or is no ledger of fedpriv.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(100)
    except OSError as error:
        raise LedgerError(f"{path}: can't be opened ({error.strerror}).") from None
    if not header.startswith(b"SQLite format 3\0"):
        raise LedgerCorruptError(f"{path}: is not a fedpriv ledger.")
    if int.from_bytes(header[68:72], "big") != APPLICATION:
        raise LedgerError(f"{path}: is not a fedpriv ledger but another database.")


def _lock(path: Path, *, reading: bool) -> int:
    """Open the file with a lock on it, for this process alone, and return the descriptor.

    A process that looks at a ledger holds the lock for a moment; one that spends waits for that.

    Raises:
        LedgerInUseError: another process, or another part of this one, has it.
    """
    try:
        file = os.open(path, os.O_RDONLY if reading else os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: can't be opened ({error.strerror}).") from None
    until = time.monotonic() + GLANCE
    with on_error(partial(os.close, file)):
        try:
            while not try_lock(file, fcntl.LOCK_SH if reading else fcntl.LOCK_EX):
                if reading or time.monotonic() > until or not try_lock(file, fcntl.LOCK_SH):
                    raise _in_use(path)
                fcntl.flock(file, fcntl.LOCK_UN)  # there are only readers: let the next one try
                time.sleep(0.05)
        except OSError as error:
            raise LedgerError(f"{path}: can't be locked ({error.strerror}).") from None
    return file


def _in_use(path: Path) -> LedgerInUseError:
    return LedgerInUseError(
        f"{path}: is in use by another process. One process at a time may spend; the figures of"
        " a running site are in its budget.json."
    )


def _connect(path: Path, *, reading: bool) -> sqlite3.Connection:
    """Open a file for this process alone.

    Raises:
        LedgerInUseError: another connection has it.
    """
    uri = f"{path.resolve().as_uri()}?mode={'ro' if reading else 'rw'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=0
    )  # a statement that is kept holds the reply that was last bound to it
    with on_error(connection.close):
        try:
            if reading:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                return connection
            path.chmod(0o600)
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA journal_size_limit = 0")  # kept, it takes up a reply's room
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA temp_store = MEMORY")  # another disk may be full
            connection.execute("BEGIN EXCLUSIVE")
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise _in_use(path) from None
            if error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK:
                raise LedgerError(
                    f"{path}: was being written to when its process or its machine stopped. Nothing"
                    " is lost: the next start of the site completes it."
                ) from None
            raise LedgerError(f"{path}: can't be opened ({error}).") from None
        except _UNREADABLE as error:
            raise LedgerCorruptError(f"{path}: is not a fedpriv ledger ({error}).") from None
    return connection
