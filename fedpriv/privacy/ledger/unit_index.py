"""Keep which ledger each of a site's units belongs to, so that nobody gets a fresh budget.

A ledger counts what one population has paid. The same people in a second ledger would pay
from a budget that does not know of the first, so a site keeps an index of every unit that one
of its ledgers ever covered, and a ledger that names a unit of another one is refused.

A unit is known by tags, HMAC-SHA256 under a secret of the site, never by an id or a text. It
stays claimed when its records leave the data: what was released of it was paid by that ledger.

Different people can look alike: a patient 7 and a case 7, or two notes from one template. Only
somebody who knows them can tell, so an administrator may state it, under a name, in the ledger
(`administration.state_distinct`). Then the units that matched may be in both ledgers, no others. A
text that more than a tenth of a population's units have, and more than two of them, names nobody:
it is a template or a prompt.
"""

from __future__ import annotations

import hmac
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedpriv.errors import LedgerCorruptError, LedgerError, LedgerInUseError, OverlapError
from fedpriv.files import sync_folder
from fedpriv.privacy.ledger.chain import on_error
from fedpriv.secret import load_or_create_secret

APPLICATION = 0x66707675  # "fpvu", in the file's header
FORMAT = 2
ID = "id"  # kind of an identity that a unit has in every row
KEY_BYTES = 32
TAG_BYTES = 16
WAIT = 60.0  # seconds for the claim of another process
_SCHEMA = (
    # What a unit is known by, and which unit: the tag of its id, or of all of its texts.
    "CREATE TABLE units (tag BLOB, unit BLOB, dataset_id TEXT,"
    " PRIMARY KEY (tag, unit, dataset_id)) STRICT, WITHOUT ROWID",
    # Refusals, by the code that they showed, and who states that those are different people.
    "CREATE TABLE refusals (dataset_id TEXT, other TEXT, matches TEXT, stated_by TEXT,"
    " PRIMARY KEY (dataset_id, other, matches)) STRICT",
    "CREATE TABLE ledgers (dataset_id TEXT PRIMARY KEY, file TEXT NOT NULL) STRICT",
    "CREATE TRIGGER units_are_kept BEFORE DELETE ON units"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    "CREATE TRIGGER units_are_final BEFORE UPDATE ON units"
    " BEGIN SELECT RAISE(ABORT, 'append-only'); END",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
_LEDGER = "SELECT file FROM ledgers WHERE dataset_id = ?"
_REFUSAL = "SELECT stated_by FROM refusals WHERE (dataset_id, other, matches) = (?, ?, ?)"
CODE_DIGITS = 12  # digits of the code for what matched
TEMPLATE_UNITS, TEMPLATE_SHARE = 2, 0.1  # a text that more units than that have names nobody
_OF_THE_KEY = b""  # the identity of no unit: its tag tells which key the others were made with
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_NOTADB)


class Identity(NamedTuple):
    """A mark by which a unit is known.

    Attributes:
        kind: `ID`, or the field that a text was read into; for the administrator's screen.
        content: the same bytes for the same person, whatever file they come from.
    """

    kind: str
    content: bytes


class UnitIndex:
    """The units of all ledgers of one site, in ``units.db`` and ``units.key`` of a folder.

    Privacy:
        Nothing leaves. Anybody who has both files can test whether somebody is in the site's data;
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
    ) -> list[tuple[str, str]]:
        """Note that units are covered by the ledger of `dataset_id`: all of them, or none.

        Args:
            units: the identities of each unit; one with an `ID`, which comes first, may come again
                with others. See `fedpriv.data.identity`.
            file: name of the ledger in this folder; a copy of it under another name is refused.
            begun: the ledger holds plans, so its units have been claimed before.

        Returns:
            The statements that this claim rests on, made for this ledger or for another about it:
            the other's data set, and who states that its look-alikes are different people.

        Raises:
            OverlapError: some are covered by another ledger, or the ledger has a copy; no unit was
                claimed. The message says how many, and by what they are known: it is for the
                site's own screen. Its code is kept, for `check_refused`.
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
                try:
                    with _exclusive(connection):
                        self._claim_ledger(connection, dataset_id, file, begun)
                        self._claim(connection, dataset_id, units)
                        return _statements(connection, dataset_id)
                except _RefusedError as refused:
                    with _exclusive(connection):  # the code is known, the units are not claimed
                        connection.executemany(
                            "INSERT OR IGNORE INTO refusals VALUES (?, ?, ?, NULL)",
                            [(dataset_id, other, code) for other, code, _ in refused.others],
                        )
                    raise self._overlap(dataset_id, refused.others) from None

    def knows(self, dataset_id: str) -> bool:
        """Tell whether a ledger ever claimed units here.

        Raises:
            LedgerError: as `claim`.
        """
        with self._typed_errors(), self._opened() as connection:
            return connection.execute(_LEDGER, (dataset_id,)).fetchone() is not None

    def check_refused(self, dataset_id: str, other: str, matches: str) -> None:
        """Check that a claim was refused with this code.

        Raises:
            LedgerError: none was.
        """
        with self._typed_errors(), self._opened() as connection:
            found = connection.execute(_REFUSAL, (dataset_id, other, matches)).fetchone()
        if found is None:
            raise LedgerError(
                f"{self.path}: no start of data set {dataset_id} was refused for {matches!r} of"
                f" {other!r}. Give the data set and the code as the refusal shows them."
            )

    def accept(self, dataset_id: str, other: str, matches: str, by: str) -> None:
        """Let the units that matched be in both ledgers, at the next claim.

        The statement that they are different people has to be in the ledger first; see
        `administration.state_distinct`.

        Args:
            matches: the code that the refusal showed. It stands for these very units: others who
                look alike later are refused again.

        Raises:
            LedgerError: as `check_refused` and `claim`.
        """
        self.check_refused(dataset_id, other, matches)
        with self._typed_errors(), self._opened() as connection:
            connection.execute(
                "UPDATE refusals SET stated_by = ? WHERE (dataset_id, other, matches) = (?, ?, ?)",
                (by, dataset_id, other, matches),
            )

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the index, which must exist, for one look or change."""
        if not (self.path.exists() and self.key_path.exists()):
            raise self._corrupt("is missing, or its key is")
        with closing(_connect(self.path)) as connection:
            self._prepare(connection, had_key=True)
            with _exclusive(connection):
                yield connection

    def _prepare(self, connection: sqlite3.Connection, had_key: bool) -> None:
        """Check the file, or make it. It is on disk before there is a key."""
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
        known = connection.execute(_LEDGER, (dataset_id,)).fetchone()
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
            for identities in units:
                unit = _unit(key, identities)
                yield from ((_tag(key, i.content), unit, i.kind) for i in identities)

        connection.execute("CREATE TEMP TABLE claimed (tag BLOB, unit BLOB, kind TEXT)")
        connection.executemany("INSERT INTO claimed VALUES (?, ?, ?)", rows())
        [count] = connection.execute("SELECT count(DISTINCT unit) FROM claimed").fetchone()
        connection.execute(
            "DELETE FROM claimed WHERE kind != :id AND tag IN (SELECT tag FROM claimed"
            " WHERE kind != :id GROUP BY tag HAVING count(DISTINCT unit) > :most)",
            {"id": ID, "most": max(TEMPLATE_UNITS, count * TEMPLATE_SHARE)},
        )
        # Matches with other ledgers, unless the same unit is known in this one.
        connection.execute(
            "CREATE TEMP TABLE matched AS SELECT DISTINCT tag, claimed.unit, kind,"
            " dataset_id AS other FROM claimed JOIN units USING (tag)"
            " WHERE dataset_id != :own AND NOT EXISTS (SELECT 1 FROM units AS known"
            " WHERE known.tag = claimed.tag AND known.unit = claimed.unit"
            " AND known.dataset_id = :own)",
            {"own": dataset_id},
        )
        others = connection.execute("SELECT DISTINCT other FROM matched ORDER BY other").fetchall()
        refused = []
        for (other,) in others:
            matches = self._matches(connection, key, other)
            found = connection.execute(_REFUSAL, (dataset_id, other, matches)).fetchone()
            if found is None or found[0] is None:  # nobody states that they are others
                refused.append((other, matches, _counted(connection, other)))
        if refused:
            raise _RefusedError(refused)
        connection.execute(
            "INSERT OR IGNORE INTO units SELECT DISTINCT tag, unit, ? FROM claimed"
            " ORDER BY tag, unit",
            (dataset_id,),
        )

    def _matches(self, connection: sqlite3.Connection, key: bytes, other: str) -> str:
        """Return a code of the units and tags that match another ledger, for people to repeat."""
        digest = hmac.new(key, b"matches", "sha256")
        query = "SELECT DISTINCT tag, unit FROM matched WHERE other = ? ORDER BY tag, unit"
        for tag, unit in connection.execute(query, (other,)):
            digest.update(tag + unit)
        return digest.hexdigest()[:CODE_DIGITS]

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
        """Return the site's secret, made before the first claim and the same ever after."""
        [used] = connection.execute("SELECT EXISTS (SELECT 1 FROM units)").fetchone()
        if used and not self.key_path.exists():
            raise self._corrupt(f"can't be read without its key {self.key_path.name}")
        key = load_or_create_secret(
            self.key_path,
            lambda: secrets.token_bytes(KEY_BYTES),
            name="key of the units",
            leaked="Anybody who has read it and has units.db can tell who is in this site's data.",
        )
        mark = _tag(key, _OF_THE_KEY)
        known = connection.execute("SELECT 1 FROM units WHERE tag = ?", (mark,)).fetchone()
        if len(key) != KEY_BYTES or (used and known is None):
            raise self._corrupt(f"was not made with the key in {self.key_path.name}")
        connection.execute("INSERT OR IGNORE INTO units VALUES (?, x'', '')", (mark,))
        return key

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and the disk into errors of the ledger."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # from a damaged file's content
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in _BUSY:
                raise LedgerInUseError(
                    f"{self.path}: is in use by another process. Start again when it is done."
                ) from None
            if code in _DAMAGED:
                raise self._corrupt(f"can't be read as an index of units ({error})") from None
            raise LedgerError(
                f"{self.path}: can't be used ({error}). No unit was claimed."
            ) from None
        except OSError as error:
            raise LedgerError(f"{self.path}: can't be used: {error.strerror}.") from None

    def _corrupt(self, what: str) -> LedgerCorruptError:
        return LedgerCorruptError(
            f"{self.path}: {what}. Restore the newest copy of both {self.path.name} and"
            f" {self.key_path.name}: without them the same people could pay from two ledgers."
        )


class _RefusedError(Exception):
    """A claim that shares units with other ledgers: for each its data set, the code, and words."""

    def __init__(self, others: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.others = others


def _statements(connection: sqlite3.Connection, dataset_id: str) -> list[tuple[str, str]]:
    """Return the statements about a ledger, for it or for another: the other's id, and by whom."""
    return connection.execute(
        "SELECT other, stated_by FROM refusals WHERE dataset_id = :own AND stated_by IS NOT NULL"
        " UNION SELECT dataset_id, stated_by FROM refusals WHERE other = :own"
        " AND stated_by IS NOT NULL ORDER BY 1, 2",
        {"own": dataset_id},
    ).fetchall()


def _counted(connection: sqlite3.Connection, other: str) -> str:
    """Say how many units match another ledger, and by what."""
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


def _unit(key: bytes, identities: Sequence[Identity]) -> bytes:
    """Return the tag of a unit: that of its id, or of all of its texts."""
    contents = [identity.content for identity in identities]
    if identities and identities[0].kind == ID:
        contents = contents[:1]
    return _tag(key, b"\n".join(contents))


def _tag(key: bytes, identity: bytes) -> bytes:
    return hmac.digest(key, identity, "sha256")[:TAG_BYTES]


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path, timeout=WAIT, isolation_level=None)
    with on_error(connection.close):
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA temp_store = MEMORY")
        path.chmod(0o600)
    return connection


@contextmanager
def _exclusive(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all of a `with` block or none, while no other process reads or writes."""
    connection.execute("BEGIN EXCLUSIVE")
    with on_error(connection.rollback):
        yield
        connection.execute("COMMIT")
