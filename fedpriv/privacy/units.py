"""Which ledger each of a site's units belongs to, so that nobody becomes a fresh budget.

A ledger counts what one population has paid. The same people in a second ledger would pay
from a budget that does not know of the first, so a site keeps an index of every unit that one
of its ledgers ever covered, and a ledger that names one of another's is refused.

A unit is known by tags, HMAC-SHA256 under a secret of the site, never by an id or a text. It
stays claimed when its records leave the data: what was released of it was paid by that ledger.

Different people can look alike: a patient 7 and a case 7, or two notes from one template. Only
somebody who knows them can tell, so an administrator may state it, under a name, in the ledger
(`Ledger.state_distinct`); then those that matched are both ledgers', and nobody else.
"""

from __future__ import annotations

import hmac
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedpriv.errors import LedgerCorruptError, LedgerError, LedgerInUseError, OverlapError
from fedpriv.files import sync_folder
from fedpriv.secret import load_or_create_secret

APPLICATION = 0x66707675  # "fpvu", in the file's header
FORMAT = 2
ID = "id"  # kind of an identity that a unit has in every row
KEY_BYTES = 32
TAG_BYTES = 16
WAIT = 60.0  # seconds for the claim of another process
_SCHEMA = (
    "CREATE TABLE units (tag BLOB, dataset_id TEXT, PRIMARY KEY (tag, dataset_id))"
    " STRICT, WITHOUT ROWID",
    "CREATE TABLE distinct_matches (dataset_id TEXT, other TEXT, matches TEXT,"
    " PRIMARY KEY (dataset_id, other, matches)) STRICT, WITHOUT ROWID",
    "CREATE TABLE ledgers (dataset_id TEXT PRIMARY KEY, file TEXT NOT NULL) STRICT",
    "CREATE TRIGGER units_are_kept BEFORE DELETE ON units"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER units_are_final BEFORE UPDATE ON units"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
MATCHES = "[0-9a-f]{12}"  # the code of what matched
_OF_THE_KEY = b""  # the identity of no unit: its tag tells which key the others were made with
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNWRITABLE = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)


class Identity(NamedTuple):
    """Something that a unit is known by.

    Attributes:
        kind: `ID`, or the field that a text was read into; for the administrator's screen.
        content: the same bytes for the same person, whatever file they come from.
    """

    kind: str
    content: bytes


class UnitIndex:
    """The units of all ledgers of one site, in ``units.db`` and ``units.key`` of a folder.

    Privacy:
        Nothing leaves. Whoever has both files can test whether somebody is in the site's data;
        without the key the tags tell nothing but how many there are.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "units.db"
        self.key_path = folder / "units.key"

    def claim(
        self,
        dataset_id: str,
        units: Iterable[Sequence[Identity]],
        *,
        file: str = "ledger.db",
        begun: bool = False,
    ) -> None:
        """Note that units are covered by the ledger of `dataset_id`: all of them, or none.

        Args:
            file: name of the ledger in this folder; a copy of it under another name is refused.
            begun: the ledger holds plans, so its units have been claimed before.
            units: the identities of each unit; one with an `ID`, which comes first, may come again
                with others. See `fedpriv.data.identity`.

        Raises:
            OverlapError: some are covered by another ledger, or the ledger has a copy; nothing
                was written. The message says how many, and by what they are known: it is for the
                site's own screen.
            LedgerInUseError: another process was claiming for too long.
            LedgerCorruptError: the index is damaged or missing, or is no index of this key.
            LedgerError: a file can't be written, or the key may be read by others.
        """
        with self._typed_errors():
            had_key = self.key_path.exists()  # looked at first, because it is made last
            if had_key and not self.path.exists():
                raise self._corrupt("is missing, although its key is there")
            with closing(_connect(self.path)) as connection:
                self._prepare(connection, had_key)
                with _exclusive(connection):
                    self._claim_ledger(connection, dataset_id, file, begun)
                    self._claim(connection, dataset_id, units)

    @staticmethod
    def check_code(matches: str) -> None:
        """Check that a code is one that a refusal may have shown.

        Raises:
            LedgerError: it is not.
        """
        if not re.fullmatch(MATCHES, matches):
            raise LedgerError(f"Expected matches={matches!r} to be the code that a refusal shows.")

    def accept(self, dataset_id: str, other: str, matches: str) -> None:
        """Let the units that matched be both ledgers', at the next claim.

        The statement that they are different people belongs into the ledger first; see
        `Ledger.state_distinct`.

        Args:
            matches: the code that the refusal showed. It is of these very matches: whoever looks
                alike later is refused again.

        Raises:
            LedgerError: `matches` is no such code, or as `claim`.
        """
        self.check_code(matches)
        with self._typed_errors():
            if not (self.path.exists() and self.key_path.exists()):
                raise self._corrupt("is missing, or its key is")
            with closing(_connect(self.path)) as connection:
                self._prepare(connection, had_key=True)
                with _exclusive(connection):
                    connection.execute(
                        "INSERT OR IGNORE INTO distinct_matches VALUES (?, ?, ?)",
                        (dataset_id, other, matches),
                    )

    def _prepare(self, connection: sqlite3.Connection, had_key: bool) -> None:
        """Check the file, or make it; on disk before there is a key."""
        with _exclusive(connection):
            [application] = connection.execute("PRAGMA application_id").fetchone()
            [version] = connection.execute("PRAGMA user_version").fetchone()
            [tables] = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if not tables and not had_key:
                for statement in _SCHEMA:
                    connection.execute(statement)
            elif application != APPLICATION:
                raise self._corrupt("is no index of units")
            elif version != FORMAT:
                raise LedgerError(
                    f"{self.path}: has format {version}; this fedpriv reads format {FORMAT}."
                    " Install the version that wrote it."
                )
            elif connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise self._corrupt("is damaged")
        sync_folder(self.path.parent)

    def _claim_ledger(
        self, connection: sqlite3.Connection, dataset_id: str, file: str, begun: bool
    ) -> None:
        known = connection.execute(
            "SELECT file FROM ledgers WHERE dataset_id = ?", (dataset_id,)
        ).fetchone()
        if known is None and begun:
            raise self._corrupt(f"does not know the ledger {file}, whose units paid before")
        if known is not None and known[0] != file:
            raise OverlapError(
                f"{self.path}: the ledger of data set {dataset_id} is {known[0]}, and {file} is a"
                " copy of it. Two copies would both spend: remove one, and keep the name."
            )
        connection.execute("INSERT OR IGNORE INTO ledgers VALUES (?, ?)", (dataset_id, file))

    def _claim(
        self, connection: sqlite3.Connection, dataset_id: str, units: Iterable[Sequence[Identity]]
    ) -> None:
        key = self._key(connection)

        def rows() -> Iterator[tuple[bytes, bytes, str]]:
            for number, identities in enumerate(units):
                tags = [_tag(key, identity.content) for identity in identities]
                has_id = bool(identities) and identities[0].kind == ID
                unit = tags[0] if has_id else b"%d" % number
                yield from ((t, unit, i.kind) for t, i in zip(tags, identities, strict=True))

        connection.execute("CREATE TEMP TABLE claimed (tag BLOB, unit BLOB, kind TEXT)")
        connection.executemany("INSERT INTO claimed VALUES (?, ?, ?)", rows())
        # Of other ledgers, unless a statement made them this one's, too.
        connection.execute(
            "CREATE TEMP TABLE matched AS SELECT tag, unit, kind, dataset_id AS other"
            " FROM claimed JOIN units USING (tag) WHERE dataset_id != :own AND NOT EXISTS"
            " (SELECT 1 FROM units AS known WHERE known.tag = claimed.tag AND"
            " known.dataset_id = :own)",
            {"own": dataset_id},
        )
        others = connection.execute("SELECT DISTINCT other FROM matched ORDER BY other").fetchall()
        refused = []
        for (other,) in others:
            matches = self._matches(connection, key, other)
            stated = connection.execute(
                "SELECT 1 FROM distinct_matches WHERE (dataset_id, other, matches) = (?, ?, ?)",
                (dataset_id, other, matches),
            ).fetchone()
            if stated is None:
                refused.append((other, matches, _counted(connection, other)))
        if refused:
            raise self._overlap(dataset_id, refused)
        connection.execute(
            "INSERT OR IGNORE INTO units SELECT DISTINCT tag, ? FROM claimed ORDER BY tag",
            (dataset_id,),
        )

    def _matches(self, connection: sqlite3.Connection, key: bytes, other: str) -> str:
        """A code of what matches another ledger, for somebody to repeat."""
        digest = hmac.new(key, b"matches", "sha256")
        query = "SELECT DISTINCT tag FROM matched WHERE other = ? ORDER BY tag"
        for (tag,) in connection.execute(query, (other,)):
            digest.update(tag)
        return digest.hexdigest()[:12]

    def _overlap(self, dataset_id: str, refused: list[tuple[str, str, str]]) -> OverlapError:
        shown = ", ".join(counted for *_, counted in refused)
        other, code, _ = refused[0]
        return OverlapError(
            f"{self.path}: data set {dataset_id} shares units with another ledger of this"
            f" site: {shown}. A second ledger would be a fresh budget for the same people:"
            " use the one that has them, or take their records out. Ledgers of different"
            " sites belong in folders of their own. If these are different people that look"
            " alike, such as notes from a template, an administrator can state it: fedpriv ledger"
            f" distinct LEDGER --from {other} --matches {code} --by NAME"
        )

    def _key(self, connection: sqlite3.Connection) -> bytes:
        """The site's secret, made before the first claim and the same ever after."""
        [used] = connection.execute("SELECT EXISTS (SELECT 1 FROM units)").fetchone()
        if used and not self.key_path.exists():
            raise self._corrupt(f"can't be read without its key {self.key_path.name}")
        key = load_or_create_secret(
            self.key_path,
            lambda: secrets.token_bytes(KEY_BYTES),
            name="key of the units",
            leaked="Whoever has read it and has units.db can tell who is in this site's data.",
        )
        mark = _tag(key, _OF_THE_KEY)
        known = connection.execute("SELECT 1 FROM units WHERE tag = ?", (mark,)).fetchone()
        if len(key) != KEY_BYTES or (used and known is None):
            raise self._corrupt(f"was not made with the key in {self.key_path.name}")
        connection.execute("INSERT OR IGNORE INTO units VALUES (?, '')", (mark,))
        return key

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """What SQLite and the disk say, as errors of the ledger."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # of what is in a damaged file
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _BUSY:
                raise LedgerInUseError(
                    f"{self.path}: is in use by another process. Start again when it is done."
                ) from None
            if code not in _UNWRITABLE:
                raise self._corrupt(f"can't be read as an index of units ({error})") from None
            raise LedgerError(
                f"{self.path}: can't be written ({error}). No unit was claimed."
            ) from None
        except OSError as error:
            raise LedgerError(f"{self.path}: can't be used: {error.strerror}.") from None

    def _corrupt(self, what: str) -> LedgerCorruptError:
        return LedgerCorruptError(
            f"{self.path}: {what}. Restore the newest copy of both {self.path.name} and"
            f" {self.key_path.name}: without them the same people could pay from two ledgers."
        )


def _counted(connection: sqlite3.Connection, other: str) -> str:
    """How many units match another ledger, and by what."""
    [units] = connection.execute(
        "SELECT count(DISTINCT unit) FROM matched WHERE other = ?", (other,)
    ).fetchone()
    kinds = connection.execute(
        "SELECT kind, count(DISTINCT unit), count(DISTINCT tag) FROM matched WHERE other = ?"
        " GROUP BY kind ORDER BY kind",
        (other,),
    )
    by = [
        f"{count} by {kind}" + ("" if kind == ID else f", {texts} different")
        for kind, count, texts in kinds
    ]
    return f"{units} with the ledger of data set {other}: {'; '.join(by)}"


def _tag(key: bytes, identity: bytes) -> bytes:
    return hmac.digest(key, identity, "sha256")[:TAG_BYTES]


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA temp_store = MEMORY")
        path.chmod(0o600)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _exclusive(connection: sqlite3.Connection) -> Iterator[None]:
    """All of what is written in a `with` block or none, while no other process reads or writes."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
