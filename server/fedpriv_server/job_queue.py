"""The jobs of a lasting coordinator: one SQLite file, in which every change is one transaction.

The server and the commands read and write it at the same time, from several processes.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from fedpriv.config.job import JobConfig
from fedpriv.errors import ConfigError, RunError
from fedpriv.process import timestamp

FILE = "queue.db"
State = Literal["waiting", "running", "finished", "failed", "aborted"]
ENDED = ("finished", "failed", "aborted")
_APPLICATION = 0x66707175  # application id in SQLite's header: says that the file is ours
VERSION = 1
_TABLE = """
    CREATE TABLE jobs (
      id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL,
      place INTEGER NOT NULL, state TEXT NOT NULL, abort INTEGER NOT NULL DEFAULT 0,
      settings TEXT NOT NULL, source TEXT NOT NULL, submitted TEXT NOT NULL, begun TEXT,
      ended TEXT, why TEXT NOT NULL DEFAULT '', sites TEXT NOT NULL DEFAULT '{}')
"""


@dataclass(frozen=True)
class QueuedJob:
    """A job of the queue.

    Attributes:
        abort: whether somebody wants it to end.
        source: path of the federation file that was submitted.
        why: the reason why it ended; empty before.
        sites: site → in how many rounds it took part, and how it answered last.
    """

    id: int
    name: str
    state: State
    abort: bool
    settings: str
    source: str
    submitted: str
    begun: str | None
    ended: str | None
    why: str
    sites: Mapping[str, Any]

    @property
    def config(self) -> JobConfig:
        """The settings with which it was submitted. Later changes of the file don't count.

        Raises:
            ConfigError: this version can't read the settings.
        """
        try:
            return JobConfig.model_validate_json(self.settings)
        except ValidationError as error:
            raise ConfigError(
                f"can't be read by this version of fedpriv ({error.errors()[0]['msg']})",
                file=self.source,
                key=f"job {self.id}",
                fix="Submit it anew.",
            ) from None

    def folder(self, state: Path) -> Path:
        """Return the job's run directory, in the state folder of the server."""
        return state / "runs" / f"{self.id:04d}-{self.name}"


class Queue:
    """An open queue: use `Queue.open`."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self._database, self._path = database, path

    @classmethod
    @contextlib.contextmanager
    def open(cls, state: Path) -> Iterator[Self]:
        """Open the queue of a state folder, and make it if it does not exist.

        Raises:
            RunError: the file is from a newer version, is no queue, is damaged, or its disk fails.
        """
        path = state / FILE
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{state}: can't be made ({error.strerror}).") from None
        try:
            with contextlib.closing(sqlite3.connect(path, 60, isolation_level=None)) as database:
                database.row_factory = sqlite3.Row
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
                queue = cls(database, path)
                queue._begin_or_check()
                yield queue
        except sqlite3.Error as error:
            raise RunError(f"{path}: can't be used as a queue ({error}).") from None

    def _begin_or_check(self) -> None:
        """Make the table in a new file. Refuse a file that is something else."""
        with self._changing():
            version, application, tables = (
                self._database.execute(question).fetchone()[0]
                for question in (
                    "PRAGMA user_version",
                    "PRAGMA application_id",
                    "SELECT count(*) FROM sqlite_master",
                )
            )
            if application == 0 and not tables:
                self._database.execute(_TABLE)
                self._database.execute(f"PRAGMA application_id = {_APPLICATION}")
                self._database.execute(f"PRAGMA user_version = {VERSION}")
            elif application != _APPLICATION:
                raise RunError(
                    f"{self._path}: is no queue of fedpriv-server. Name another --state."
                )
            elif version != VERSION:
                raise RunError(
                    f"{self._path}: is of version {version}, and this fedpriv knows {VERSION}. Use"
                    " the fedpriv that wrote it."
                )

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Make one transaction: all of it is written to the disk, or nothing."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def submit(self, config: JobConfig, source: Path) -> int:
        """Queue a job. Return its number."""
        settings = config.model_dump_json(exclude_unset=True, exclude_none=True)
        with self._changing():
            made = self._database.execute(
                "INSERT INTO jobs (name, settings, source, submitted, state, place) VALUES"
                " (?, ?, ?, ?, 'waiting', (SELECT coalesce(max(place), 0) + 1 FROM jobs))",
                (config.job.name, settings, str(source), timestamp()),
            )
        return int(made.lastrowid or 0)

    def jobs(self) -> list[QueuedJob]:
        """Return all jobs: those that ended by number, then the running one, then the waiting."""
        ranks = {"running": 1, "waiting": 2}  # within each of these, jobs are ordered by place
        return sorted(
            self._rows("true"),
            key=lambda job: (ranks.get(job.state, 0), job.id if job.state in ENDED else 0),
        )

    def job(self, number: int) -> QueuedJob:
        """Return a job by its number. Raise RunError if there is no such job."""
        found = self._rows("id = ?", number)
        if not found:
            raise RunError(f"{self._path}: holds no job {number}. Type: fedpriv-server list")
        return found[0]

    def _rows(self, where: str, *values: object) -> list[QueuedJob]:
        columns = ", ".join(one.name for one in fields(QueuedJob))
        order = f"SELECT {columns} FROM jobs WHERE {where} ORDER BY place"
        return [
            QueuedJob(**{**row, "sites": json.loads(row["sites"]), "abort": bool(row["abort"])})
            for row in map(dict, self._database.execute(order, values))
        ]

    def begin(self) -> QueuedJob | None:
        """Return the job to run: the one that was running when the server ended, or the next."""
        with self._changing():
            found = self._rows("state = 'running'") or self._rows("state = 'waiting'")[:1]
            for job in found:
                self._database.execute(
                    "UPDATE jobs SET state = 'running', begun = coalesce(begun, ?) WHERE id = ?",
                    (timestamp(), job.id),
                )
        return self.job(found[0].id) if found else None

    def end(self, number: int, state: State, why: str, sites: Mapping[str, Any]) -> None:
        """Store how a job ended."""
        with self._changing():
            self._database.execute(
                "UPDATE jobs SET state = ?, why = ?, sites = ?, ended = ? WHERE id = ?",
                (state, why, json.dumps(sites), timestamp(), number),
            )

    def abort(self, number: int) -> QueuedJob:
        """End a job: at once if it waits, when its round is over if it runs. Return the job.

        Raises:
            RunError: there is no such job, or it has ended.
        """
        with self._changing():
            self._living(number, "waiting", "running")
            self._database.execute(
                "UPDATE jobs SET abort = 1, ended = iif(state = 'waiting', ?, NULL),"
                " why = iif(state = 'waiting', 'Aborted before it began.', why),"
                " state = iif(state = 'waiting', 'aborted', state) WHERE id = ?",
                (timestamp(), number),
            )
        return self.job(number)

    def retry(self, number: int) -> None:
        """Let a failed or aborted job go on where it stopped, after all jobs that wait.

        Raises:
            RunError: there is no such job, or it neither failed nor was aborted.
        """
        with self._changing():
            self._living(number, "failed", "aborted")
            self._database.execute(
                "UPDATE jobs SET state = 'waiting', abort = 0, ended = NULL, why = '',"
                " place = (SELECT max(place) + 1 FROM jobs) WHERE id = ?",
                (number,),
            )

    def put_first(self, number: int) -> None:
        """Put a waiting job before all others that wait.

        Raises:
            RunError: there is no such job, or it does not wait.
        """
        with self._changing():
            self._living(number, "waiting")
            self._database.execute(
                "UPDATE jobs SET place = (SELECT min(place) - 1 FROM jobs) WHERE id = ?", (number,)
            )

    def _living(self, number: int, *states: str) -> None:
        if (state := self.job(number).state) not in states:
            raise RunError(f"Job {number} is {state}, and not {' or '.join(states)}.")
